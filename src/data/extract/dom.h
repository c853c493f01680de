// A page as a tree that can be changed: what the HTML5 parser made of it, without comments, scripts and styles.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::data {

struct DomNode {
  std::string_view tag;  // lower case; "" for text
  std::string text;      // of a text node
  std::string names;     // class and id in lower case, a space between and around
  std::string role, href, style, rel, itemprop;
  bool is_hidden = false;  // hidden, aria-hidden="true"
  DomNode* parent = nullptr;
  std::vector<DomNode*> children;
  double score = 0;
  bool has_score = false, is_data_table = false;

  bool is(std::string_view name) const { return tag == name; }
  bool is_text() const { return tag.empty(); }
};

struct Dom {
  std::deque<DomNode> nodes;
  DomNode* root = nullptr;
  DomNode* body = nullptr;
  std::string title, language, date;
  bool is_too_deep = false;  // nested deeper than a browser would draw; the text was taken without a tree
  DomNode* add(std::string_view tag, DomNode* parent);
};

// Never throws for any bytes; `html` is valid UTF-8. Elements below a depth of 200 are lifted to it.
Dom parse_html(std::string_view html);
void remove_node(DomNode* node);

// Characters of the text without outer white space, runs of it counted as one; commas among them; characters in links.
struct TextCounts {
  double chars = 0, commas = 0, links = 0;
  double link_density() const { return chars > 0 ? links / chars : 0; }
};
TextCounts count_text(const DomNode& node);
std::string inner_text(const DomNode& node);
// Calls visit(node) for every element below `node`, in order; false from it skips what is below.
void each_element(DomNode* node, const std::function<bool(DomNode*)>& visit);

}  // namespace sinter::data
