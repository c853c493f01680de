// What every fuzz target of the tokenizer loaders does: load or throw base::Error, and if it loaded, use it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "tokenizer/tokenizer.h"

template <class Load>
int fuzz_tokenizer(const uint8_t* data, size_t size, Load&& load) {
  try {
    const sinter::tokenizer::Tokenizer tokenizer = load(std::string_view(reinterpret_cast<const char*>(data), size));
    const auto ids = tokenizer.encode("Hello  world, it's 12345 naïve\n\n日本語 <s>\xff",
                                      {.parse_special = true, .add_special = false});
    tokenizer.decode(ids);
    tokenizer.to_json();
  } catch (const sinter::base::Error&) {
  }
  return 0;
}
