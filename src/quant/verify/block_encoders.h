// Our block quantizers against ggml's: blocks.safetensors with rows `x`, and for each TYPE its bytes `TYPE.q` and the
// numbers they stand for, `TYPE.dequant`.
#pragma once
#include <string>
#include <vector>

namespace sinter::quant {

struct EncoderCheck {
  std::string name, kind;
  double error = 0, limit = 0;  // holds when error <= limit
};

// Formats whose rounding is defined: the same bytes. Others, whose scales are searched for: the RMSE of rows of
// ordinary weights is at most 2 % above ggml's. Types that encode_row() does not know have no line. Throws base::Error
// when the file cannot be read.
std::vector<EncoderCheck> verify_block_encoders(const std::string& file);

}  // namespace sinter::quant
