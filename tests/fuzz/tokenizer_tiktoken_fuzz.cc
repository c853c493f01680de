// Small inputs are none of the known vocabularies, so loading always ends in an error: what is tested is the line
// parser.
#include "tokenizer_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return fuzz_tokenizer(data, size, [](std::string_view bytes) {
    return sinter::tokenizer::Tokenizer::from_tiktoken(bytes, "fuzz.tiktoken");
  });
}
