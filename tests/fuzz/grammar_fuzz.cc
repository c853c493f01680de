// Any bytes given as a JSON schema, a regex or a grammar either compile or throw base::Error, within the limits; masks
// of what compiles can be made.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "engine/grammar/json_schema.h"
#include "engine/grammar/matcher.h"

using namespace sinter::engine::grammar;  // NOLINT

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TokenBytes vocabulary = make_vocabulary({"{", "}", "\"", "a", "1", "{\"", "\":", "<end>"}, {7});
  const std::string text(reinterpret_cast<const char*>(data), size);
  const GrammarLimits limits{.max_nodes = 20000, .max_seconds = 0.5};
  for (int kind = 0; kind < 3; ++kind) {
    try {
      Program program = kind == 0   ? compile_schema(text, limits)
                        : kind == 1 ? compile_regex_program(text, limits)
                                    : compile_gbnf(text, limits);
      CompiledGrammar grammar(std::move(program), vocabulary);
      grammar.mask(grammar.advance(grammar.start(), "{\"a"));
    } catch (const sinter::base::Error&) {
    }
  }
  return 0;
}
