#include "data/pipeline/mixture.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cmath>

namespace sinter::data {

std::vector<double> mix_epochs(const std::vector<MixSource>& sources, MixNumbers numbers, double temperature,
                               double most_epochs) {
  std::vector<double> shares;
  double total = 0, sum = 0;
  for (const MixSource& s : sources) total += s.bytes;
  for (const MixSource& s : sources) {
    shares.push_back(temperature > 0 ? s.number * std::pow(s.bytes / std::max(total, 1.0), 1 / temperature) : s.number);
    sum += shares.back();
  }
  if (numbers == MixNumbers::epochs && temperature == 0) return shares;
  double bytes = INFINITY;  // of the result
  for (size_t i = 0; i < sources.size(); ++i) {
    if (shares[i] > 0 && sources[i].bytes > 0)
      bytes = std::min(bytes, most_epochs * sources[i].bytes * sum / shares[i]);
  }
  std::vector<double> epochs;
  for (size_t i = 0; i < sources.size(); ++i)
    epochs.push_back(sources[i].bytes > 0 && shares[i] > 0 ? bytes * shares[i] / sum / sources[i].bytes : 0);
  return epochs;
}

int64_t mix_copies(double epochs, std::string_view line) {
  const double whole = std::floor(epochs);
  const double draw = static_cast<double>(XXH3_64bits(line.data(), line.size()) >> 11) * 0x1p-53;
  return static_cast<int64_t>(whole) + (draw < epochs - whole ? 1 : 0);
}

}  // namespace sinter::data
