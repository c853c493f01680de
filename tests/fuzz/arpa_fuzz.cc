// n-gram models: what is read must also score.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "data/rank/ngram_model.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sinter;
  try {
    const data::NgramModel model =
        data::NgramModel::from_text(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    model.perplexity("the house a river");
  } catch (const base::Error&) {
  }
  return 0;
}
