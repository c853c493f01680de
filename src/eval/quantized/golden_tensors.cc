#include "eval/quantized/golden_tensors.h"

#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace sinter::eval {

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

const io::TensorEntry& tensor_of(const io::SafetensorsFile& file, const std::string& name) {
  const io::TensorEntry* entry = file.find(name);
  SINTER_CHECK(entry, "'{}': tensor '{}' is missing", file.path(), name);
  return *entry;
}

std::vector<float> floats_of(const io::TensorEntry& entry) {
  std::vector<float> values(static_cast<size_t>(entry.num_elements()));
  base::convert_elements(entry.dtype, entry.bytes.data(), base::DType::f32, values.data(), values.size());
  return values;
}

VerifyCheck skipped(const std::string& name, const std::string& reason) {
  VerifyCheck check{name, "not checked", 0, 0, reason};
  check.is_skipped = true;
  return check;
}

namespace {

VerifyCheck count(const std::string& name, const std::vector<float>& found, const io::TensorEntry& answer,
                  const std::function<bool(const float&, const float&)>& is_same) {
  SINTER_CHECK(answer.dtype == base::DType::f32 && answer.num_elements() == static_cast<int64_t>(found.size()),
               "tensor '{}' is {} {}; expected {} numbers in f32", answer.name, base::dtype_name(answer.dtype),
               io::shape_to_string(answer.shape), found.size());
  const std::vector<float> expected = floats_of(answer);
  double differing = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const bool both_nan = std::isnan(found[i]) && std::isnan(expected[i]);
    differing += !both_nan && !is_same(found[i], expected[i]);
  }
  return {name, fmt::format("differing of {}", found.size()), differing, 0, ""};
}

}  // namespace

VerifyCheck count_differing(const std::string& name, const std::vector<float>& found, const io::TensorEntry& answer) {
  return count(name, found, answer,
               [](const float& a, const float& b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); });
}

VerifyCheck count_unequal(const std::string& name, const std::vector<float>& found, const io::TensorEntry& answer,
                          double tolerance) {
  VerifyCheck check = count(name, found, answer, [&](const float& a, const float& b) {
    const double x = a, y = b;
    return x == y || std::abs(x - y) <= tolerance * std::abs(y);
  });
  if (tolerance > 0) check.note = fmt::format("differing by more than {:.0e} of the number", tolerance);
  return check;
}

void attempt(const std::string& name, std::vector<VerifyCheck>& checks, const std::function<void()>& check) {
  try {
    check();
  } catch (const std::exception& e) {
    checks.push_back({name, "cannot be read", std::numeric_limits<double>::quiet_NaN(), 0, e.what()});
  }
}

}  // namespace sinter::eval
