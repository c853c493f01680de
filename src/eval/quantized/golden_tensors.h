// What the checks of quantized cases share: tensors of an answer file, and lines of the result.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "eval/verify.h"
#include "io/safetensors.h"

namespace sinter::eval {

std::string lower_case(std::string text);

// Throws base::Error naming the file where there is no such tensor.
const io::TensorEntry& tensor_of(const io::SafetensorsFile& file, const std::string& name);
// The elements in f32, from any format.
std::vector<float> floats_of(const io::TensorEntry& entry);

// A line for what this program does not have: neither passed nor failed.
VerifyCheck skipped(const std::string& name, const std::string& reason);
// How many numbers differ from the answer (f32), any NaN for any NaN: in their bits, or as numbers (zeros of both signs
// are equal) by more than `tolerance` of the answer. Throw base::Error when the answer is of another size.
VerifyCheck count_differing(const std::string& name, const std::vector<float>& found, const io::TensorEntry& answer);
VerifyCheck count_unequal(const std::string& name, const std::vector<float>& found, const io::TensorEntry& answer,
                          double tolerance);
// Runs one check or case; an error in it becomes a line that fails with the reason.
void attempt(const std::string& name, std::vector<VerifyCheck>& checks, const std::function<void()>& check);

}  // namespace sinter::eval
