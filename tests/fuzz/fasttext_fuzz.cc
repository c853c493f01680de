// fastText models: what is read must also run.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "data/rank/fasttext.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sinter;
  try {
    const data::FastText model =
        data::FastText::from_bytes(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    model.predict("some words to look at", 3);
  } catch (const base::Error&) {
  }
  return 0;
}
