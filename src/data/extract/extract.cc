#include "data/extract/extract.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>

#include "data/extract/clean.h"
#include "data/extract/dom.h"
#include "data/text/characters.h"

namespace sinter::data {
namespace {

constexpr double kEnoughText = 500;  // characters; with fewer the page is read again with fewer rules

struct Rules {
  bool strip_unlikely = true, weigh_classes = true, clean = true;
};

bool is_unlikely(const DomNode& node) {
  static constexpr std::string_view kUnlikely[] = {
      "-ad-",         "ai2html",  "banner",  "breadcrumbs", "combx",   "comment",    "community", "cover-wrap",
      "disqus",       "extra",    "footer",  "gdpr",        "header",  "legends",    "menu",      "related",
      "remark",       "replies",  "rss",     "shoutbox",    "sidebar", "skyscraper", "social",    "sponsor",
      "supplemental", "ad-break", "agegate", "pagination",  "pager",   "popup",      "yom-remote"};
  static constexpr std::string_view kMaybe[] = {"and",     "article", "body",    "column",
                                                "content", "main",    "mathjax", "shadow"};
  return has_any(node.names, kUnlikely) && !has_any(node.names, kMaybe);
}

bool has_unlikely_role(const DomNode& node) {
  static constexpr std::string_view kRoles[] = {"menu",  "menubar",     "complementary", "navigation",
                                                "alert", "alertdialog", "dialog"};
  return std::find(std::begin(kRoles), std::end(kRoles), node.role) != std::end(kRoles);
}

bool is_byline(const DomNode& node, double chars) {
  static constexpr std::string_view kByline[] = {"byline", "author", "dateline", "writtenby", "p-author"};
  return (node.rel == "author" || node.itemprop.find("author") != std::string::npos || has_any(node.names, kByline)) &&
         chars > 0 && chars < 100;
}

// Words of the shorter that the longer has too.
double title_similarity(const std::string& title, const std::string& heading) {
  auto words = [](const std::string& text) {
    std::vector<std::string> out;
    std::string word;
    for (unsigned char c : lower(text) + " ") {
      if (std::isalnum(c) || c >= 128) {
        word.push_back(static_cast<char>(c));
      } else if (!word.empty()) {
        out.push_back(std::move(word));
        word.clear();
      }
    }
    return out;
  };
  const std::vector<std::string> a = words(title), b = words(heading);
  if (a.empty() || b.empty()) return 0;
  double unique = 0, all = 0;
  for (const std::string& w : b) {
    all += static_cast<double>(w.size()) + 1;
    if (std::find(a.begin(), a.end(), w) == a.end()) unique += static_cast<double>(w.size()) + 1;
  }
  return 1 - unique / all;
}

class Reader {
 public:
  Reader(Dom& dom, Rules rules) : dom_(dom), rules_(rules) {}

  // The element that holds the main text; null when there is none.
  DomNode* read() {
    prepare(dom_.root);
    score_paragraphs();
    DomNode* top = find_top();
    if (!top) return nullptr;
    return gather(top);
  }

 private:
  bool is_unwanted(DomNode* node) {
    if (!is_visible(*node) || is_page_frame(*node)) return true;
    if (node->is("h1") || node->is("h2")) {
      // The title once more, where it does not stand right above its text.
      if (!has_seen_title_ && title_similarity(dom_.title, inner_text(*node)) > .75 && !is_above_text(*node)) {
        has_seen_title_ = true;
        title_heading_ = inner_text(*node);
        return true;
      }
    }
    if (!has_byline_ && is_byline(*node, count_text(*node).chars)) {
      has_byline_ = true;
      return true;
    }
    if (rules_.strip_unlikely) {
      const bool is_exempt = node->is("body") || node->is("a") || node->is("html") || has_ancestor(node, "table") ||
                             has_ancestor(node, "code");
      if ((is_unlikely(*node) && !is_exempt) || has_unlikely_role(*node)) return true;
    }
    static constexpr std::string_view kBoxes[] = {"div", "section", "header", "h1", "h2", "h3", "h4", "h5", "h6"};
    return is_one_of(*node, kBoxes) && is_without_content(*node);
  }

  // Head, foot and margin of the whole page, whatever the names.
  static bool is_page_frame(const DomNode& node) {
    static constexpr std::string_view kFrames[] = {"header", "footer", "nav", "aside"};
    if (!is_one_of(node, kFrames)) return false;
    return !has_ancestor(&node, "article") && !has_ancestor(&node, "main") && !has_ancestor(&node, "section");
  }

  // A heading whose next sibling is a paragraph.
  static bool is_above_text(const DomNode& node) {
    if (!node.parent) return false;
    const std::vector<DomNode*>& siblings = node.parent->children;
    for (auto at = std::find(siblings.begin(), siblings.end(), &node); at != siblings.end(); ++at) {
      if (*at == &node) continue;
      if ((*at)->is_text() && strip((*at)->text).empty()) continue;
      return (*at)->is("p") && count_text(**at).chars >= 25;
    }
    return false;
  }

  static bool is_without_content(const DomNode& node) {
    for (const DomNode* child : node.children) {
      if (child->is_text() ? !strip(child->text).empty() : !(child->is("br") || child->is("hr"))) return false;
    }
    return true;
  }

  void prepare(DomNode* node) {
    const std::vector<DomNode*> children = node->children;
    for (DomNode* child : children) {
      if (child->is_text()) continue;
      if (is_unwanted(child)) {
        child->parent = nullptr;  // all at once below: one by one takes the square of their number
        continue;
      }
      if (child->is("div")) turn_div(child);
      static constexpr std::string_view kScored[] = {"section", "h2", "h3", "h4", "h5", "h6", "p", "td", "pre"};
      if (is_one_of(*child, kScored)) paragraphs_.push_back(child);
      prepare(child);
    }
    std::erase_if(node->children, [](const DomNode* child) { return child->parent == nullptr; });
  }

  // A div of loose text becomes paragraphs; one without block elements is itself a paragraph.
  void turn_div(DomNode* div) {
    std::vector<DomNode*> children;
    DomNode* paragraph = nullptr;
    for (DomNode* child : div->children) {
      const bool is_blank = child->is_text() ? strip(child->text).empty() : child->is("br");
      if (is_phrasing(*child) && (paragraph || !is_blank)) {
        if (!paragraph) {
          paragraph = dom_.add("p", nullptr);
          paragraph->parent = div;
          children.push_back(paragraph);
        }
        child->parent = paragraph;
        paragraph->children.push_back(child);
        continue;
      }
      if (!is_phrasing(*child)) paragraph = nullptr;
      children.push_back(child);
    }
    div->children = std::move(children);
    size_t elements = 0;
    bool has_loose_text = false, has_block = false;
    for (const DomNode* child : div->children) {
      elements += !child->is_text();
      has_loose_text |= child->is_text() && !strip(child->text).empty();
    }
    each_element(div, [&](DomNode* e) {
      has_block |= is_block(*e);
      return !has_block;
    });
    DomNode* only = elements == 1 ? *std::find_if(div->children.begin(), div->children.end(),
                                                  [](DomNode* c) { return !c->is_text(); })
                                  : nullptr;
    if (only && only->is("p") && !has_loose_text && count_text(*div).link_density() < .25) {
      div->children = only->children;
      for (DomNode* child : div->children) child->parent = div;
      div->tag = "p";
    } else if (!has_block) {
      div->tag = "p";
    }
  }

  void start_score(DomNode* node) {
    if (node->has_score) return;
    node->has_score = true;
    static constexpr std::string_view kThree[] = {"pre", "td", "blockquote"};
    static constexpr std::string_view kMinusThree[] = {"address", "ol", "ul", "dl", "dd", "dt", "li", "form"};
    static constexpr std::string_view kMinusFive[] = {"h1", "h2", "h3", "h4", "h5", "h6", "th"};
    if (node->is("div")) node->score += 5;
    if (is_one_of(*node, kThree)) node->score += 3;
    if (is_one_of(*node, kMinusThree)) node->score -= 3;
    if (is_one_of(*node, kMinusFive)) node->score -= 5;
    if (rules_.weigh_classes) node->score += class_weight(*node);
  }

  void score_paragraphs() {
    for (DomNode* paragraph : paragraphs_) {
      if (!paragraph->parent) continue;
      const TextCounts counts = count_text(*paragraph);
      if (counts.chars < 25) continue;
      const double points = 2 + counts.commas + std::min(std::floor(counts.chars / 100), 3.0);
      int level = 0;
      for (DomNode* at = paragraph->parent; at && at->parent && level < 5; at = at->parent, ++level) {
        if (!at->has_score) candidates_.push_back(at);
        start_score(at);
        at->score += points / (level == 0 ? 1 : level == 1 ? 2 : level * 3);
      }
    }
  }

  DomNode* find_top() {
    std::vector<DomNode*> best;
    for (DomNode* candidate : candidates_) {
      candidate->score *= 1 - count_text(*candidate).link_density();
      best.push_back(candidate);
    }
    std::stable_sort(best.begin(), best.end(), [](DomNode* a, DomNode* b) { return a->score > b->score; });
    if (best.size() > 5) best.resize(5);
    if (best.empty() || best[0]->is("body")) {
      DomNode* all = dom_.add("div", nullptr);
      all->children = dom_.body->children;
      for (DomNode* child : all->children) child->parent = all;
      dom_.body->children = {all};
      all->parent = dom_.body;
      start_score(all);
      return all;
    }
    DomNode* top = best[0];
    // An element that holds several good ones is better than each.
    std::vector<DomNode*> rivals;
    for (size_t i = 1; i < best.size(); ++i) {
      if (best[i]->score / top->score >= .75) rivals.push_back(best[i]);
    }
    if (rivals.size() >= 3) {
      for (DomNode* parent = top->parent; parent && !parent->is("body"); parent = parent->parent) {
        const auto held =
            std::count_if(rivals.begin(), rivals.end(), [&](DomNode* r) { return is_ancestor(parent, r); });
        if (held >= 3) {
          top = parent;
          break;
        }
      }
    }
    start_score(top);
    double last = top->score;
    const double least = last / 3;
    for (DomNode* parent = top->parent; parent && !parent->is("body"); parent = parent->parent) {
      if (!parent->has_score) continue;
      if (parent->score < least) break;
      if (parent->score > last) {
        top = parent;
        break;
      }
      last = parent->score;
    }
    while (top->parent && !top->parent->is("body") && num_elements(*top->parent) == 1) top = top->parent;
    start_score(top);
    return top;
  }

  DomNode* gather(DomNode* top) {
    DomNode* article = dom_.add("div", nullptr);
    DomNode* parent = top->parent ? top->parent : dom_.body;
    const double least = std::max(10.0, top->score * .2);
    const std::vector<DomNode*> siblings = parent->children;
    for (DomNode* sibling : siblings) {
      if (sibling->is_text()) continue;
      bool is_wanted = sibling == top;
      if (!is_wanted) {
        const double bonus = sibling->names == top->names && strip(top->names).size() > 0 ? top->score * .2 : 0;
        is_wanted = sibling->has_score && sibling->score + bonus >= least;
        if (!is_wanted && sibling->is("p")) {
          const TextCounts counts = count_text(*sibling);
          const std::string text = inner_text(*sibling);
          is_wanted = (counts.chars > 80 && counts.link_density() < .25) ||
                      (counts.chars > 0 && counts.chars < 80 && counts.links == 0 &&
                       (text.find(". ") != std::string::npos || text.ends_with('.')));
        }
      }
      if (!is_wanted) continue;
      sibling->parent = article;
      article->children.push_back(sibling);
    }
    clean_article(article, {rules_.weigh_classes, rules_.clean});
    return article;
  }

  Dom& dom_;
  Rules rules_;
  std::vector<DomNode*> paragraphs_, candidates_;
  bool has_seen_title_ = false, has_byline_ = false;

 public:
  std::string title_heading_;
};

}  // namespace

ExtractedPage extract_page(std::string_view html) {
  ExtractedPage page;
  std::string best;
  static constexpr Rules kAttempts[] = {
      {true, true, true}, {false, true, true}, {false, false, true}, {false, false, false}};
  for (const Rules& rules : kAttempts) {
    Dom dom = parse_html(html);
    page.title = dom.title;
    page.language = dom.language.substr(0, dom.language.find('-'));
    page.date = dom.date;
    Reader reader(dom, rules);
    const DomNode* article = reader.read();
    if (!article) continue;
    const TextCounts counts = count_text(*article);
    if (counts.link_density() > .5) continue;  // an index of other pages
    std::string text = article_text(*article);
    if (text.size() > best.size()) best = text;
    if (counts.chars >= kEnoughText) {
      best = std::move(text);
      break;
    }
    if (dom.is_too_deep) break;
  }
  page.text = std::move(best);
  return page;
}

}  // namespace sinter::data
