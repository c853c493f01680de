#include "quant/mixes.h"

#include <string_view>

namespace sinter::quant {
namespace {

using base::DType;
using base::WeightFormat;
using enum base::WeightFormat;

constexpr Mix kMixes[] = {
    {"f32", 0, plain, DType::f32, "32"},       {"f16", 1, plain, DType::f16, "16"},
    {"bf16", 32, plain, DType::bf16, "16"},    {"q8_0", 7, q8_0, DType::f32, "8.5"},
    {"q6_k", 18, q6_k, DType::f32, "6.6"},     {"q5_k_m", 17, q5_k, DType::f32, "5.7"},
    {"q5_k_s", 16, q5_k, DType::f32, "5.5"},   {"q5_1", 9, q5_1, DType::f32, "6.0"},
    {"q5_0", 8, q5_0, DType::f32, "5.5"},      {"q4_k_m", 15, q4_k, DType::f32, "4.8"},
    {"q4_k_s", 14, q4_k, DType::f32, "4.6"},   {"q4_1", 3, q4_1, DType::f32, "5.0"},
    {"q4_0", 2, q4_0, DType::f32, "4.5"},      {"iq4_nl", 25, iq4_nl, DType::f32, "4.5"},
    {"iq4_xs", 30, iq4_xs, DType::f32, "4.3"}, {"q3_k_l", 13, q3_k, DType::f32, "4.3"},
    {"q3_k_m", 12, q3_k, DType::f32, "3.9"},   {"q3_k_s", 11, q3_k, DType::f32, "3.5"},
    {"q2_k", 10, q2_k, DType::f32, "3.0"},     {"q2_k_s", 21, q2_k, DType::f32, "2.7"},
};

// The layers where an error costs most: the first and the last eighth, and every third between.
bool is_precious(int64_t layer, int64_t count) {
  const int64_t eighth = count / 8;
  return layer < eighth || layer >= 7 * count / 8 || (layer - eighth) % 3 == 2;
}

bool is_any(std::string_view mix, std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) {
    if (mix == name) return true;
  }
  return false;
}

WeightFormat value_format(std::string_view mix, WeightFormat usual, int64_t layer, const spec::ModelSpec& s) {
  const int64_t group = s.num_heads / s.num_kv_heads;
  if (mix == "q2_k") usual = group >= 4 ? q4_k : q3_k;
  if (mix == "q2_k_s" && group >= 4) usual = q4_k;
  if (mix == "q3_k_m") usual = layer < 2 ? q5_k : q4_k;
  if (mix == "q3_k_l") usual = q5_k;
  if (is_any(mix, {"iq4_nl", "iq4_xs"}) && group >= 4) usual = q5_k;
  if (is_any(mix, {"q4_k_m", "q5_k_m"}) && is_precious(layer, s.num_layers)) usual = q6_k;
  if (mix == "q4_k_s" && layer < 4) usual = q5_k;
  return s.moe.num_experts == 8 ? q8_0 : usual;
}

WeightFormat down_format(std::string_view mix, WeightFormat usual, int64_t layer, const spec::ModelSpec& s,
                         bool has_importance) {
  const int64_t n = s.num_layers;
  if (mix == "q2_k") return q3_k;
  if (mix == "q2_k_s") return layer < n / 8 ? q4_k : usual;
  if (mix == "q3_k_m") return layer < n / 16 ? q5_k : q4_k;
  if (mix == "q3_k_l") return q5_k;
  if (is_any(mix, {"q4_k_m", "q5_k_m"})) return is_precious(layer, n) ? q6_k : usual;
  if (mix == "iq4_xs") return layer < n / 8 && !has_importance ? q5_k : usual;
  if (mix == "q4_k_s") return layer < n / 8 ? q5_k : usual;
  if (is_any(mix, {"q4_0", "q5_0"}) && has_importance && layer < n / 8) return mix == "q4_0" ? q4_1 : q5_1;
  return usual;
}

WeightFormat output_format(std::string_view mix, WeightFormat usual, const spec::ModelSpec& s) {
  if (s.moe.num_experts == 8) {
    const bool is_low = is_any(mix, {"q2_k", "q3_k_s", "q3_k_m", "iq4_nl", "q4_k_s", "q4_k_m", "iq4_xs"});
    return is_low ? q5_k : usual;
  }
  if (mix == "q2_k") return q3_k;
  if (mix == "q3_k_m") return q4_k;
  if (mix == "q3_k_l") return q5_k;
  return usual;
}

// What is stored in rows that the format's blocks do not fill.
TensorFormat fitting(WeightFormat format, int64_t columns) {
  if (columns % base::info_of(format).block_elements == 0) return {format};
  WeightFormat small = q8_0;
  if (format == q2_k || format == q3_k) small = q4_0;
  if (format == q4_k) small = q5_0;
  if (format == q5_k) small = q5_1;
  if (format == iq4_xs || format == iq4_nl) small = iq4_nl;
  if (base::info_of(format).block_elements > 32 && columns % 32 == 0) return {small};
  return {plain, DType::f16};
}

}  // namespace

std::span<const Mix> mixes() { return kMixes; }

const Mix* find_mix(const std::string& name) {
  for (const Mix& mix : kMixes) {
    if (name == mix.name) return &mix;
  }
  return nullptr;
}

TensorFormat format_of(const Mix& mix, const models::GgufExportTensor& tensor, const spec::ModelSpec& spec,
                       bool has_importance) {
  using spec::ParameterRole;
  const ParameterRole role = tensor.info->role;
  const bool is_matrix = tensor.info->shape.rank() >= 2;
  if (!is_matrix || role == ParameterRole::router || role == ParameterRole::position) return {plain, DType::f32};
  if (mix.format == plain) return {plain, mix.dtype};
  const std::string_view name = mix.name;
  const int64_t layer = tensor.info->layer;
  auto is_named = [&](std::string_view part) { return tensor.name.find(part) != std::string::npos; };
  WeightFormat format = mix.format;
  if (tensor.name == "output.weight" || (spec.tied_head && tensor.name == "token_embd.weight")) {
    const bool fits = tensor.columns() % base::info_of(q6_k).block_elements == 0;
    if (format != q8_0) format = fits ? q6_k : q8_0;
  } else if (is_named("attn_qkv")) {
    if (is_any(name, {"q3_k_m", "q3_k_l"})) format = q4_k;
    if (name == "q4_k_m") format = q5_k;
    if (name == "q5_k_m") format = q6_k;
  } else if (is_named("attn_v.")) {
    format = value_format(name, format, layer, spec);
  } else if (is_named("attn_k.") && spec.moe.num_experts == 8) {
    format = q8_0;
  } else if (is_named("attn_output.")) {
    format = output_format(name, format, spec);
  } else if (is_named("ffn_down")) {
    format = down_format(name, format, layer, spec, has_importance);
  }
  return fitting(format, tensor.columns());
}

}  // namespace sinter::quant
