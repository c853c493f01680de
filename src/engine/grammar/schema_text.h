// Parts of JSON schemas that are about the text of one value: numbers in a range, formats of strings.
#pragma once
#include <optional>
#include <string>

#include "engine/grammar/char_nfa.h"

namespace sinter::engine::grammar {

struct SchemaRange {
  std::optional<double> least, most;
  bool excludes_least = false, excludes_most = false;
  std::optional<double> multiple_of;
  bool is_integer = false;
};

// Texts of the numbers in the range. Throws base::Error naming what cannot be honoured.
CharNfa number_texts(const SchemaRange& range, Budget& budget);

// A regex for a string's "format"; "" for one that is not known.
std::string format_regex(const std::string& format);

}  // namespace sinter::engine::grammar
