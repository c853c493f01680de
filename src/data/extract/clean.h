// Cleaning of the element that holds a page's main text, and its text.
#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "data/extract/dom.h"

namespace sinter::data {

struct CleanRules {
  bool weigh_classes = true;
  bool clean_conditionally = true;  // lists, tables and boxes that look like anything but text go
};
void clean_article(DomNode* article, const CleanRules& rules);
// Blocks on lines of their own, list items, table cells and preformatted text kept.
std::string article_text(const DomNode& article);

// +25 for names of main text, -25 for names of what stands around it, for class and id together.
double class_weight(const DomNode& node);
bool is_visible(const DomNode& node);
bool is_block(const DomNode& node);
bool is_phrasing(const DomNode& node);
bool has_ancestor(const DomNode* node, std::string_view tag);
bool is_ancestor(const DomNode* ancestor, const DomNode* node);
size_t num_elements(const DomNode& node);

inline bool has_any(std::string_view text, std::span<const std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](std::string_view p) { return text.find(p) != std::string_view::npos; });
}
inline bool is_one_of(const DomNode& node, std::span<const std::string_view> tags) {
  return std::find(tags.begin(), tags.end(), node.tag) != tags.end();
}

}  // namespace sinter::data
