// Any bytes taken for a token shard either open and read whole or throw base::Error.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/error.h"
#include "data/token_shard.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sinter;
  std::vector<uint64_t> aligned((size + 7) / 8);
  if (size > 0) std::memcpy(aligned.data(), data, size);
  try {
    data::TokenShard shard(std::as_bytes(std::span(aligned)).first(size), "fuzz");
    std::vector<int32_t> tokens(static_cast<size_t>(shard.num_tokens()));
    shard.read(0, shard.num_tokens(), tokens.data());
  } catch (const base::Error&) {
  }
  return 0;
}
