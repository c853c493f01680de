// Regular expressions to automata: what ECMAScript's and Python's have in common and a finite automaton can do.
#pragma once
#include <string_view>

#include "engine/grammar/char_nfa.h"

namespace sinter::engine::grammar {

// whole: the text matches from its first to its last character. search: a part of it does (JSON schema's "pattern").
enum class RegexMode { whole, search };

// Throws base::Error with the position for what is wrong, and for what cannot be honoured, by name: lookaround, back
// references, word boundaries, flags.
CharNfa compile_regex(std::string_view pattern, RegexMode mode, Budget& budget);

}  // namespace sinter::engine::grammar
