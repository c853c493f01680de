// Shared by the checks of the cases: reading a case, comparing tensors.
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/verify.h"

namespace sinter::tune {

using Checks = std::vector<eval::VerifyCheck>;

// A tensor of a file as numbers, whatever its format. Integers up to 2^53 are exact.
struct Numbers {
  std::vector<int64_t> shape;
  std::vector<double> values;
  int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  int64_t columns() const { return shape.size() < 2 ? 1 : shape[1]; }
  double at(int64_t row, int64_t column = 0) const { return values[static_cast<size_t>(row * columns() + column)]; }
};
using Tensors = std::map<std::string, Numbers>;
Tensors read_tensors(const std::string& path);
// Throws base::Error naming what is missing.
const Numbers& get(const Tensors& tensors, const std::string& name);

nlohmann::ordered_json read_case(const std::string& folder);
// A path of the case, relative to its folder.
std::string path_of(const std::string& folder, const nlohmann::ordered_json& name);
// The folder of a tokenizer: as path_of, else one of that name in the nearest data/tokenizers above the case.
std::string tokenizer_folder(const std::string& folder, const nlohmann::ordered_json& name);

// Largest difference, as a share of the largest expected value where that is over `floor`.
eval::VerifyCheck compare(std::string name, std::span<const double> found, std::span<const double> expected,
                          double limit, double floor = 1);
eval::VerifyCheck compare(std::string name, double found, double expected, double limit, double floor = 1);

// A case's checks, one function a kind.
Checks verify_adam8bit(const std::string& folder, const eval::VerifyOptions& options);
Checks verify_adapter(const std::string& folder, const eval::VerifyOptions& options);
Checks verify_four_bit(const std::string& folder, const eval::VerifyOptions& options);
Checks verify_preference_adapter(const std::string& folder, const eval::VerifyOptions& options);
Checks verify_chat_template(const std::string& folder, const eval::VerifyOptions& options);
Checks verify_packing(const std::string& folder, const eval::VerifyOptions& options);
Checks verify_sft_packed(const std::string& folder, const eval::VerifyOptions& options);
Checks verify_sft_padded(const std::string& folder, const eval::VerifyOptions& options);
Checks verify_preference_pairs(const std::string& folder, const eval::VerifyOptions& options);
Checks verify_kto(const std::string& folder, const eval::VerifyOptions& options);
Checks verify_reward(const std::string& folder, const eval::VerifyOptions& options);
Checks verify_ppo_value_head(const std::string& folder, const eval::VerifyOptions& options);
Checks verify_ppo_value_model(const std::string& folder, const eval::VerifyOptions& options);
Checks verify_grpo(const std::string& folder, const eval::VerifyOptions& options);

}  // namespace sinter::tune
