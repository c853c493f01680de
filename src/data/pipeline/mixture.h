// How often the documents of each source go into a mix.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace sinter::data {

struct MixSource {
  double bytes = 0;   // of text that there is
  double number = 1;  // epochs, or a weight
};

enum class MixNumbers { epochs, weights };

// Epochs of each source. With weights, or a temperature above 0 (shares by size to the power 1 / temperature, times the
// number), as much text as there is when the source that runs out first is read `most_epochs` times.
std::vector<double> mix_epochs(const std::vector<MixSource>& sources, MixNumbers numbers, double temperature,
                               double most_epochs);

// 2.3 epochs: two copies, and a third for three documents of ten, chosen by their content.
int64_t mix_copies(double epochs, std::string_view line);

}  // namespace sinter::data
