#include "data/extract/dom.h"

#include <gumbo.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <functional>
#include <memory>

#include "data/text/characters.h"

namespace sinter::data {
namespace {

constexpr int kDepthLimit = 200;
constexpr int64_t kOpenLimit = 3000;  // open elements past which the parser takes time without measure
constexpr size_t kAttributeLimit = 2000;
constexpr size_t kPageLimit = size_t{8} << 20;

// Memory of the parser: given back all at once, so that destroying a deep tree needs no stack.
class Arena {
 public:
  static void* allocate(void* self, size_t size) { return static_cast<Arena*>(self)->take(size); }
  static void release(void*, void*) {}

 private:
  void* take(size_t size) {
    size = (size + 15) & ~size_t{15};
    if (size > left_) {
      const size_t block = std::max(size, size_t{256} << 10);
      blocks_.emplace_back(new char[block]);
      at_ = blocks_.back().get();
      left_ = block;
    }
    char* result = at_;
    at_ += size;
    left_ -= size;
    return result;
  }
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* at_ = nullptr;
  size_t left_ = 0;
};

std::string lower_ascii(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Elements that close themselves or are closed by their like do not nest.
bool is_nesting(std::string_view name) {
  static constexpr std::string_view kFlat[] = {"p",      "li",    "td",   "th",   "tr",     "dd",   "dt",
                                               "option", "br",    "img",  "hr",   "meta",   "link", "input",
                                               "source", "area",  "base", "col",  "wbr",    "path", "track",
                                               "param",  "embed", "use",  "rect", "circle", "g"};
  return std::find(std::begin(kFlat), std::end(kFlat), name) == std::end(kFlat);
}

// Attributes of the tag whose name ends at `at`, which becomes the tag's end; about, as broken ones are counted too.
size_t count_attributes(std::string_view html, size_t& at) {
  size_t count = 0;
  char before = ' ';  // the last character that is no space
  bool is_apart = true;
  for (; at < html.size() && html[at] != '>'; ++at) {
    const char c = html[at];
    if (std::isspace(static_cast<unsigned char>(c)) || c == '/') {
      is_apart = true;
      continue;
    }
    if ((c == '"' || c == '\'') && before == '=') {
      at = std::min(html.find(c, at + 1), html.size() - 1);
      is_apart = true;
    } else {
      if (is_apart && c != '=' && before != '=') ++count;
      is_apart = false;
    }
    before = c;
  }
  return count;
}

// The end of a script's or style's text that begins at `at`.
size_t skip_raw_text(std::string_view html, size_t at, std::string_view name) {
  for (at = html.find("</", at); at != std::string_view::npos; at = html.find("</", at + 2)) {
    if (lower_ascii(html.substr(at + 2, name.size())) == name) return at;
  }
  return html.size();
}

// What the parser would take the square of its size for: open elements, attributes of one tag.
bool is_beyond_limits(std::string_view html) {
  int64_t depth = 0;
  for (size_t at = html.find('<'); at != std::string_view::npos && at + 1 < html.size(); at = html.find('<', at + 1)) {
    const bool is_end = html[at + 1] == '/';
    size_t end = at + 1 + is_end;
    while (end < html.size() && std::isalnum(static_cast<unsigned char>(html[end]))) ++end;
    const size_t begin = at + 1 + is_end;
    if (end == begin) continue;
    const std::string name = lower_ascii(html.substr(begin, std::min<size_t>(end - begin, 12)));
    if (count_attributes(html, end) > kAttributeLimit) return true;
    at = end - 1;
    if (!is_end && (name == "script" || name == "style")) {
      at = skip_raw_text(html, end, name) - 1;
      continue;
    }
    if (!is_nesting(name)) continue;
    depth = std::max<int64_t>(0, depth + (is_end ? -1 : 1));
    if (depth > kOpenLimit) return true;
  }
  return false;
}

bool is_dropped(GumboTag tag) {
  switch (tag) {
    case GUMBO_TAG_SCRIPT:
    case GUMBO_TAG_STYLE:
    case GUMBO_TAG_NOSCRIPT:
    case GUMBO_TAG_TEMPLATE:
    case GUMBO_TAG_SVG:
    case GUMBO_TAG_IFRAME:
    case GUMBO_TAG_OBJECT:
    case GUMBO_TAG_EMBED:
    case GUMBO_TAG_CANVAS:
    case GUMBO_TAG_NOEMBED:
    case GUMBO_TAG_NOFRAMES:
      return true;
    default:
      return false;
  }
}

std::string_view attribute(const GumboElement& element, const char* name) {
  const GumboAttribute* found = gumbo_get_attribute(&element.attributes, name);
  return found ? found->value : "";
}

void fill_attributes(const GumboElement& element, DomNode& node) {
  node.names = " " + lower_ascii(attribute(element, "class")) + " " + lower_ascii(attribute(element, "id")) + " ";
  node.role = lower_ascii(attribute(element, "role"));
  node.href = std::string(attribute(element, "href"));
  node.style = lower_ascii(attribute(element, "style"));
  node.rel = lower_ascii(attribute(element, "rel"));
  node.itemprop = lower_ascii(attribute(element, "itemprop"));
  node.is_hidden =
      gumbo_get_attribute(&element.attributes, "hidden") != nullptr ||
      (attribute(element, "aria-hidden") == "true" && node.names.find("fallback-image") == std::string::npos);
}

class TreeBuilder {
 public:
  explicit TreeBuilder(Dom& dom) : dom_(dom) {}

  void build(const GumboNode* from, DomNode* to, int depth) {
    const GumboVector& children = from->v.element.children;
    for (unsigned i = 0; i < children.length; ++i) add(static_cast<const GumboNode*>(children.data[i]), to, depth);
  }

 private:
  void add(const GumboNode* child, DomNode* to, int depth) {
    if (child->type == GUMBO_NODE_TEXT || child->type == GUMBO_NODE_WHITESPACE || child->type == GUMBO_NODE_CDATA) {
      dom_.add("", to)->text = child->v.text.text;
      return;
    }
    if (child->type != GUMBO_NODE_ELEMENT) return;
    const GumboElement& element = child->v.element;
    note_head(element);
    if (is_dropped(element.tag)) return;
    if (depth >= kDepthLimit) {  // what is below hangs from the same parent
      deep_.push_back(child);
      if (deep_.size() > 1) return;
      for (size_t i = 0; i < deep_.size(); ++i) {
        const GumboVector& children = deep_[i]->v.element.children;
        for (unsigned k = 0; k < children.length; ++k) add(static_cast<const GumboNode*>(children.data[k]), to, depth);
        dom_.add("", to)->text = " ";
      }
      deep_.clear();
      return;
    }
    std::string_view name = gumbo_normalized_tagname(element.tag);
    if (name.empty()) name = "span";
    if (name == "font") name = "span";
    DomNode* node = dom_.add(name, to);
    fill_attributes(element, *node);
    if (element.tag == GUMBO_TAG_BODY) dom_.body = node;
    build(child, node, depth + 1);
  }

  void note_head(const GumboElement& element) {
    if (element.tag == GUMBO_TAG_HTML) dom_.language = lower_ascii(attribute(element, "lang"));
    if (element.tag == GUMBO_TAG_TITLE && dom_.title.empty() && element.children.length > 0) {
      const auto* text = static_cast<const GumboNode*>(element.children.data[0]);
      if (text->type == GUMBO_NODE_TEXT) dom_.title = std::string(strip(text->v.text.text));
    }
    if (element.tag == GUMBO_TAG_META) {
      const bool is_language = lower_ascii(attribute(element, "http-equiv")) == "content-language";
      if (is_language && dom_.language.empty()) dom_.language = lower_ascii(attribute(element, "content"));
      if (is_date_name(lower_ascii(attribute(element, "property"))) ||
          is_date_name(lower_ascii(attribute(element, "name"))) ||
          is_date_name(lower_ascii(attribute(element, "itemprop"))))
        note_date(attribute(element, "content"), 3);
    }
    if (element.tag == GUMBO_TAG_SCRIPT && lower_ascii(attribute(element, "type")) == "application/ld+json" &&
        element.children.length > 0) {
      const auto* text = static_cast<const GumboNode*>(element.children.data[0]);
      if (text->type == GUMBO_NODE_TEXT) note_date(linked_data_date(text->v.text.text), 2);
    }
    if (element.tag == GUMBO_TAG_TIME)
      note_date(attribute(element, "datetime"), lower_ascii(attribute(element, "itemprop")) == "datepublished" ? 2 : 1);
  }

  // What a page says of its publication: in its head, in its linked data, in the first <time>.
  void note_date(std::string_view date, int weight) {
    date = strip(date);
    constexpr size_t kLongest = 64;
    if (weight <= date_weight_ || date.empty() || date.size() > kLongest) return;
    if (date.find_first_of("0123456789") == std::string_view::npos) return;
    dom_.date = std::string(date);
    date_weight_ = weight;
  }
  static bool is_date_name(std::string_view name) {
    static constexpr std::string_view kNames[] = {"date",
                                                  "pubdate",
                                                  "publishdate",
                                                  "publish_date",
                                                  "publish-date",
                                                  "published_at",
                                                  "published",
                                                  "datepublished",
                                                  "dc.date",
                                                  "dc.date.issued",
                                                  "dc.date.created",
                                                  "dcterms.issued",
                                                  "dcterms.date",
                                                  "dcterms.created",
                                                  "sailthru.date",
                                                  "parsely-pub-date",
                                                  "article.published",
                                                  "citation_publication_date"};
    return name.find("published_time") != std::string_view::npos ||
           std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
  }
  // The value of the first "datePublished" in JSON-LD.
  static std::string_view linked_data_date(std::string_view json) {
    size_t at = json.find("\"datePublished\"");
    if (at == std::string_view::npos) return "";
    at = json.find_first_not_of(" \t\r\n:", at + 15);
    if (at == std::string_view::npos || json[at] != '"') return "";
    return json.substr(at + 1, json.find('"', at + 1) - at - 1);
  }

  int date_weight_ = 0;
  Dom& dom_;
  std::vector<const GumboNode*> deep_;
};

// The text between tags, for pages that no parser should be given.
std::string text_between_tags(std::string_view html) {
  std::string out;
  for (size_t pos = 0; pos < html.size();) {
    const size_t open = std::min(html.find('<', pos), html.size());
    out.append(html.substr(pos, open - pos));
    if (open == html.size()) break;
    const std::string_view rest = html.substr(open, 9);
    const std::string name = lower_ascii(rest);
    size_t end = html.find('>', open);
    if (name.starts_with("<script") || name.starts_with("<style")) {
      const size_t close = html.find(name.starts_with("<script") ? "</script" : "</style", open);
      end = close == std::string_view::npos ? close : html.find('>', close);
    }
    if (end == std::string_view::npos) break;
    out.push_back(' ');
    pos = end + 1;
  }
  return out;
}

void add_counts(const DomNode& node, bool is_link, bool& was_space, TextCounts& counts) {
  if (node.is_text()) {
    for (unsigned char c : node.text) {
      const bool is_space = c == ' ' || (c >= 9 && c <= 13);
      if (is_space && was_space) continue;
      if ((c & 0xc0) == 0x80) continue;
      counts.chars += 1;
      counts.links += is_link;
      counts.commas += c == ',';
      was_space = is_space;
    }
    for (const char* comma :
         {"\xd8\x8c", "\xef\xb9\x90", "\xef\xb8\x90", "\xe2\xb9\x81", "\xe2\xb8\xb4", "\xe2\xb8\xb2", "\xef\xbc\x8c"}) {
      for (size_t at = node.text.find(comma); at != std::string::npos; at = node.text.find(comma, at + 2))
        counts.commas += 1;
    }
    return;
  }
  const bool is_inside =
      is_link || (node.is("a") && !node.href.starts_with('#') && !node.href.starts_with("javascript:"));
  for (const DomNode* child : node.children) add_counts(*child, is_inside, was_space, counts);
}

void append_text(const DomNode& node, std::string& out) {
  if (node.is_text()) out += node.text;
  if (node.is("br")) out += ' ';
  for (const DomNode* child : node.children) append_text(*child, out);
}

}  // namespace

DomNode* Dom::add(std::string_view tag, DomNode* parent) {
  DomNode& node = nodes.emplace_back();
  node.tag = tag;
  node.parent = parent;
  if (parent) parent->children.push_back(&node);
  return &node;
}

Dom parse_html(std::string_view html) {
  Dom dom;
  html = html.substr(0, kPageLimit);
  dom.root = dom.add("html", nullptr);
  if (is_beyond_limits(html)) {
    dom.is_too_deep = true;
    dom.body = dom.add("body", dom.root);
    dom.add("", dom.add("p", dom.body))->text = text_between_tags(html);
    return dom;
  }
  Arena arena;
  GumboOptions options = kGumboDefaultOptions;
  options.allocator = Arena::allocate;
  options.deallocator = Arena::release;
  options.userdata = &arena;
  options.max_errors = 0;
  const GumboOutput* output = gumbo_parse_with_options(&options, html.data(), html.size());
  TreeBuilder builder(dom);
  const GumboNode* document = output->root;
  if (document && document->type == GUMBO_NODE_ELEMENT) {
    fill_attributes(document->v.element, *dom.root);
    dom.language = lower_ascii(attribute(document->v.element, "lang"));
    builder.build(document, dom.root, 0);
  }
  if (!dom.body) dom.body = dom.add("body", dom.root);
  return dom;
}

void remove_node(DomNode* node) {
  if (!node->parent) return;
  std::erase(node->parent->children, node);
  node->parent = nullptr;
}

TextCounts count_text(const DomNode& node) {
  TextCounts counts;
  bool was_space = true;
  add_counts(node, false, was_space, counts);
  if (was_space && counts.chars > 0) counts.chars -= 1;
  return counts;
}

std::string inner_text(const DomNode& node) {
  std::string raw, out;
  append_text(node, raw);
  for (std::string_view word : split_space(raw)) {
    if (!out.empty()) out.push_back(' ');
    out.append(word);
  }
  return out;
}

void each_element(DomNode* node, const std::function<bool(DomNode*)>& visit) {
  const std::vector<DomNode*> children = node->children;  // visit may change the tree
  for (DomNode* child : children) {
    if (!child->is_text() && child->parent == node && visit(child)) each_element(child, visit);
  }
}

}  // namespace sinter::data
