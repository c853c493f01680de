#include "data/extract/clean.h"

#include <cmath>
#include <functional>
#include <vector>

#include "data/text/characters.h"

namespace sinter::data {
namespace {

std::vector<DomNode*> all_of(DomNode* root, std::string_view tag) {
  std::vector<DomNode*> found;
  each_element(root, [&](DomNode* node) {
    if (node->is(tag)) found.push_back(node);
    return true;
  });
  return found;
}

void remove_all(DomNode* root, std::span<const std::string_view> tags) {
  each_element(root, [&](DomNode* node) {
    if (!is_one_of(*node, tags)) return true;
    remove_node(node);
    return false;
  });
}

// Tables of data, not of layout: with a caption or headings, or many rows and columns.
void mark_data_tables(DomNode* root) {
  for (DomNode* table : all_of(root, "table")) {
    if (table->role == "presentation") continue;
    size_t rows = 0, columns = 0, headings = 0;
    bool is_nested = false;
    each_element(table, [&](DomNode* node) {
      static constexpr std::string_view kHeadings[] = {"caption", "col", "colgroup", "tfoot", "thead", "th"};
      headings += is_one_of(*node, kHeadings);
      is_nested |= node->is("table");
      if (node->is("tr")) {
        ++rows;
        columns = std::max(columns, num_elements(*node));
      }
      return true;
    });
    if (headings > 0) {
      table->is_data_table = true;
    } else if (!is_nested && rows > 1 && columns > 1) {
      table->is_data_table = rows >= 10 || columns > 4 || rows * columns > 10;
    }
  }
}

bool is_in_data_table(const DomNode* node) {
  for (const DomNode* at = node->parent; at; at = at->parent) {
    if (at->is_data_table) return true;
  }
  return false;
}

struct Contents {
  double paragraphs = 0, images = 0, items = -100, inputs = 0, heading_chars = 0, textish_chars = 0, list_chars = 0;
  bool has_data_table = false;
};

Contents look_into(DomNode* node) {
  Contents c;
  each_element(node, [&](DomNode* e) {
    c.paragraphs += e->is("p");
    c.images += e->is("img");
    c.items += e->is("li");
    c.inputs += e->is("input");
    c.has_data_table |= e->is_data_table;
    static constexpr std::string_view kHeadings[] = {"h1", "h2", "h3", "h4", "h5", "h6"};
    if (is_one_of(*e, kHeadings)) c.heading_chars += count_text(*e).chars;
    if (e->is("ul") || e->is("ol")) c.list_chars += count_text(*e).chars;
    static constexpr std::string_view kTextish[] = {"span", "li", "td", "blockquote", "dl",    "div",
                                                    "img",  "ol", "p",  "pre",        "table", "ul"};
    if (is_one_of(*e, kTextish)) c.textish_chars += count_text(*e).chars;
    return true;
  });
  return c;
}

bool is_to_go(DomNode* node, const CleanRules& rules) {
  if (node->is_data_table || is_in_data_table(node) || has_ancestor(node, "code")) return false;
  const double weight = rules.weigh_classes ? class_weight(*node) : 0;
  const Contents c = look_into(node);
  if (c.has_data_table) return false;
  if (weight < 0) return true;
  const TextCounts counts = count_text(*node);
  if (counts.commas >= 10) return false;
  const bool is_list = node->is("ul") || node->is("ol") || (counts.chars > 0 && c.list_chars / counts.chars > .9);
  const bool is_in_figure = has_ancestor(node, "figure");
  const double density = counts.link_density(), heading_density = counts.chars > 0 ? c.heading_chars / counts.chars : 0;
  bool goes = !is_in_figure && c.images > 1 && c.paragraphs / c.images < .5;
  goes |= !is_list && c.items > c.paragraphs;
  goes |= c.inputs > std::floor(c.paragraphs / 3);
  goes |= !is_list && !is_in_figure && heading_density < .9 && counts.chars < 25 && (c.images == 0 || c.images > 2) &&
          density > 0;
  goes |= !is_list && weight < 25 && density > .2;
  goes |= weight >= 25 && density > .5;
  goes |= c.images == 0 && c.textish_chars == 0;
  return goes;
}

void clean_conditionally(DomNode* root, std::string_view tag, const CleanRules& rules) {
  if (!rules.clean_conditionally) return;
  std::vector<DomNode*> found = all_of(root, tag);
  for (auto at = found.rbegin(); at != found.rend(); ++at) {  // inner ones first
    if ((*at)->parent && is_to_go(*at, rules)) remove_node(*at);
  }
}

// Boxes of buttons to share a page with.
bool is_share(const DomNode& node) {
  for (size_t at = node.names.find("share"); at != std::string::npos; at = node.names.find("share", at + 1)) {
    const char before = node.names[at - 1];
    const size_t end = at + (node.names.substr(at).starts_with("sharedaddy") ? 10 : 5);
    const char after = node.names[end];
    if (!std::isalnum(static_cast<unsigned char>(before)) && !std::isalnum(static_cast<unsigned char>(after)))
      return true;
  }
  return false;
}

// A block that says no more than that an advertisement stands there, or a picture's caption.
bool is_notice(const DomNode& node) {
  static constexpr std::string_view kCaptions[] = {"caption", "photo-credit", "image-credit"};
  static constexpr std::string_view kBoxes[] = {"div", "p", "span", "figure", "section"};
  if (!is_one_of(node, kBoxes)) return false;
  const TextCounts counts = count_text(node);
  if (has_any(node.names, kCaptions) && counts.chars < 400) return true;
  if (counts.chars == 0 || counts.chars > 40) return false;
  const std::string text = lower(inner_text(node));
  return text == "advertisement" || text == "ad" || text == "advertising" || text == "sponsored" ||
         text == "read more" || text.starts_with("continue reading the main story");
}

class TextWriter {
 public:
  void write(const DomNode& node, bool is_preformatted) {
    if (node.is_text()) {
      put(node.text, is_preformatted);
      return;
    }
    if (node.is("br")) {
      break_line();
      return;
    }
    const bool is_line = is_block(node) || node.is("li") || node.is("tr") || node.is("h1") || node.is("h2") ||
                         node.is("h3") || node.is("h4") || node.is("h5") || node.is("h6") || node.is("section") ||
                         node.is("article") || node.is("dt") || node.is("dd") || node.is("figcaption") ||
                         node.is("figure") || node.is("main");
    if (is_line) break_line();
    for (const DomNode* child : node.children) write(*child, is_preformatted || node.is("pre"));
    if (node.is("td") || node.is("th")) put("\t", true);
    if (is_line) break_line();
  }
  std::string finish() {
    break_line();
    return std::move(out_);
  }

 private:
  void break_line() {
    while (!line_.empty() && (line_.back() == ' ' || line_.back() == '\t')) line_.pop_back();
    if (!strip(line_).empty()) out_ += (out_.empty() ? "" : "\n") + line_;
    line_.clear();
  }
  void put(std::string_view text, bool is_preformatted) {
    for (char c : text) {
      if (is_preformatted && c == '\n') {
        break_line();
      } else if (!is_preformatted && (c == ' ' || (c >= 9 && c <= 13))) {
        if (!line_.empty() && line_.back() != ' ' && line_.back() != '\t') line_.push_back(' ');
      } else if (c != '\r') {
        line_.push_back(c);
      }
    }
  }
  std::string out_, line_;
};

}  // namespace

bool is_visible(const DomNode& node) {
  if (node.is_hidden) return false;
  std::string style;
  for (char c : node.style) {
    if (c != ' ') style.push_back(c);
  }
  return style.find("display:none") == std::string::npos && style.find("visibility:hidden") == std::string::npos;
}

bool is_block(const DomNode& node) {
  static constexpr std::string_view kBlocks[] = {"blockquote", "dl", "div", "img", "ol", "p", "pre", "table", "ul"};
  return is_one_of(node, kBlocks);
}

bool is_phrasing(const DomNode& node) {
  if (node.is_text()) return true;
  static constexpr std::string_view kPhrasing[] = {
      "abbr", "audio",  "b",     "bdo",  "br",     "button", "cite", "code",     "data",   "datalist", "dfn", "em",
      "i",    "img",    "input", "kbd",  "label",  "mark",   "math", "meter",    "output", "progress", "q",   "ruby",
      "samp", "select", "small", "span", "strong", "sub",    "sup",  "textarea", "time",   "var",      "wbr"};
  if (is_one_of(node, kPhrasing)) return true;
  return (node.is("a") || node.is("del") || node.is("ins")) &&
         std::all_of(node.children.begin(), node.children.end(), [](const DomNode* c) { return is_phrasing(*c); });
}

bool has_ancestor(const DomNode* node, std::string_view tag) {
  for (const DomNode* at = node->parent; at; at = at->parent) {
    if (at->is(tag)) return true;
  }
  return false;
}

bool is_ancestor(const DomNode* ancestor, const DomNode* node) {
  for (const DomNode* at = node->parent; at; at = at->parent) {
    if (at == ancestor) return true;
  }
  return false;
}

size_t num_elements(const DomNode& node) {
  return static_cast<size_t>(
      std::count_if(node.children.begin(), node.children.end(), [](const DomNode* c) { return !c->is_text(); }));
}

double class_weight(const DomNode& node) {
  static constexpr std::string_view kGood[] = {"article", "body",       "content", "entry", "hentry", "h-entry", "main",
                                               "page",    "pagination", "post",    "text",  "blog",   "story"};
  static constexpr std::string_view kBad[] = {
      "-ad-",     "hidden",   " hid ",      "banner",  "combx",    "comment", "com-",    "contact", "footer",
      "gdpr",     "masthead", "media",      "meta",    "outbrain", "promo",   "related", "scroll",  "share",
      "shoutbox", "sidebar",  "skyscraper", "sponsor", "shopping", "tags",    "widget"};
  double weight = 0;
  const size_t middle = node.names.find(' ', 1);
  (void)middle;
  if (has_any(node.names, kBad)) weight -= 25;
  if (has_any(node.names, kGood)) weight += 25;
  return weight;
}

void clean_article(DomNode* article, const CleanRules& rules) {
  mark_data_tables(article);
  clean_conditionally(article, "form", rules);
  clean_conditionally(article, "fieldset", rules);
  static constexpr std::string_view kGone[] = {"footer",   "link",   "aside",  "nav",    "input",
                                               "textarea", "select", "button", "dialog", "figcaption"};
  remove_all(article, kGone);
  each_element(article, [](DomNode* node) {
    if (!is_share(*node) || count_text(*node).chars >= 500) return true;
    remove_node(node);
    return false;
  });
  each_element(article, [](DomNode* node) {
    if (!is_notice(*node)) return true;
    remove_node(node);
    return false;
  });
  if (rules.weigh_classes) {
    each_element(article, [](DomNode* node) {
      if (!(node->is("h1") || node->is("h2")) || class_weight(*node) >= 0) return true;
      remove_node(node);
      return false;
    });
  }
  for (const std::string_view tag : {"table", "ul", "div"}) clean_conditionally(article, tag, rules);
}

std::string article_text(const DomNode& article) {
  TextWriter writer;
  writer.write(article, false);
  return writer.finish();
}

}  // namespace sinter::data
