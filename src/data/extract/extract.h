// The main text of a web page: what a reader came for, without navigation, advertising and comments.
//
// The way is Readability's: paragraphs give points to what holds them, by length and commas, class names count for and
// against, links count against; the best element and its like-minded siblings are cleaned of what is made of links,
// forms and pictures. Tables, lists and code stay, as text.
#pragma once
#include <string>
#include <string_view>

namespace sinter::data {

struct ExtractedPage {
  std::string text;      // paragraphs on lines of their own; "" for a page without a main text
  std::string title;     // of <title>
  std::string language;  // of <html lang>, in lower case; "" when the page does not say
  std::string date;      // as the page writes it
};

// Never throws, whatever `html` (valid UTF-8) holds; linear in its size but for a bounded depth.
ExtractedPage extract_page(std::string_view html);

}  // namespace sinter::data
