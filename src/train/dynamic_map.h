// The numbers that 8-bit optimizer states stand for: bitsandbytes' dynamic maps, finer near zero.
#pragma once
#include <vector>

namespace sinter::train {

// 256 rising numbers up to 1; from -1 on (almost) with a sign, from 0 without.
std::vector<float> dynamic_map(bool is_signed);

}  // namespace sinter::train
