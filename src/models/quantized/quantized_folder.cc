#include "models/quantized/quantized_folder.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/blocks.h"
#include "base/error.h"
#include "base/json.h"
#include "base/threads.h"
#include "kernels/weight_rows.h"
#include "models/quantized/unpack.h"
#include "models/weights.h"

namespace sinter::models {

using core::WeightFormat;
using core::WeightPart;
using nlohmann::json;
using quantized::PackedTensors;
using quantized::Size;

// What a quantization_config says.
struct QuantizedFolder::Scheme {
  enum Kind { gptq, awq, packed_integers, bytes, bitsandbytes, mxfp4, nvfp4, modelopt_nvfp4 } kind = gptq;
  std::string path;  // of config.json
  std::string method;
  int bits = 4;
  int64_t group = 0;  // columns; 0: one group
  int version = 1;    // of GPTQ's format
  int64_t block_rows = 0, block_columns = 0;
};

namespace {

int64_t integer(const json& object, const char* key, int64_t otherwise, const std::string& path) {
  auto found = object.find(key);
  if (found == object.end() || found->is_null()) return otherwise;
  SINTER_CHECK(found->is_number_integer(), "'{}': quantization_config.{} is {}; expected a whole number", path, key,
               found->dump());
  return found->get<int64_t>();
}

std::string text(const json& object, const char* key, const std::string& otherwise, const std::string& path) {
  auto found = object.find(key);
  if (found == object.end() || found->is_null()) return otherwise;
  SINTER_CHECK(found->is_string(), "'{}': quantization_config.{} is {}; expected a string", path, key, found->dump());
  return found->get<std::string>();
}

std::string without_weight(const std::string& name) {
  constexpr std::string_view kEnding = ".weight";
  return name.ends_with(kEnding) ? name.substr(0, name.size() - kEnding.size()) : name;
}

// The weights of the first group of compressed-tensors' config; all groups must say the same.
const json& compressed_weights(const json& config, const std::string& path) {
  SINTER_CHECK(
      config.contains("config_groups") && config["config_groups"].is_object() && !config["config_groups"].empty(),
      "'{}': quantization_config.config_groups is missing", path);
  const json* first = nullptr;
  for (const auto& [name, group] : config["config_groups"].items()) {
    SINTER_CHECK(group.is_object() && group.contains("weights") && group["weights"].is_object(),
                 "'{}': quantization_config.config_groups.{} has no 'weights'", path, name);
    const json& weights = group["weights"];
    SINTER_CHECK(!first || (weights.value("num_bits", 0) == first->value("num_bits", 0) &&
                            weights.value("group_size", json()) == first->value("group_size", json())),
                 "'{}': groups of layers with different weights (config_groups) are not read", path);
    if (!first) first = &weights;
  }
  return *first;
}

std::vector<float> floats_of(const io::TensorEntry& entry) {
  std::vector<float> values(static_cast<size_t>(entry.num_elements()));
  base::convert_elements(entry.dtype, entry.bytes.data(), DType::f32, values.data(), values.size());
  return values;
}

}  // namespace

QuantizedFolder::QuantizedFolder(std::unique_ptr<Scheme> scheme, const io::TensorFolder& folder)
    : scheme_(std::move(scheme)), folder_(folder) {}
QuantizedFolder::~QuantizedFolder() = default;

std::unique_ptr<QuantizedFolder> QuantizedFolder::open(const json& config, const std::string& path,
                                                       const io::TensorFolder& folder) {
  auto found = config.find("quantization_config");
  if (found == config.end() || found->is_null()) return nullptr;
  const json& q = *found;
  SINTER_CHECK(q.is_object(), "'{}': quantization_config is no object", path);
  auto scheme = std::make_unique<Scheme>();
  Scheme& s = *scheme;
  s.path = path;
  s.method = text(q, "quant_method", "", path);
  s.bits = static_cast<int>(integer(q, "bits", 4, path));
  s.group = std::max<int64_t>(0, integer(q, "group_size", 0, path));
  if (s.method == "gptq") {
    const std::string format = text(q, "checkpoint_format", text(q, "format", "gptq", path), path);
    SINTER_CHECK(format == "gptq" || format == "gptq_v2",
                 "'{}': GPTQ's checkpoint_format '{}' is not read; gptq and gptq_v2 are", path, format);
    s.version = format == "gptq_v2" ? 2 : 1;
  } else if (s.method == "awq") {
    s.kind = Scheme::awq;
    const std::string version = text(q, "version", text(q, "format", "gemm", path), path);
    SINTER_CHECK(version == "gemm" || version == "GEMM",
                 "'{}': AWQ's version '{}' is not read; gemm is: convert the folder, or quantize the model again", path,
                 version);
    SINTER_CHECK(s.bits == 4, "'{}': AWQ in {} bits is not read; 4 are", path, s.bits);
  } else if (s.method == "fp8") {
    s.kind = Scheme::bytes;
    s.block_rows = s.block_columns = 128;
    if (q.contains("weight_block_size") && q["weight_block_size"].is_array() && q["weight_block_size"].size() == 2) {
      s.block_rows = q["weight_block_size"][0].get<int64_t>();
      s.block_columns = q["weight_block_size"][1].get<int64_t>();
    } else if (q.contains("weight_block_size") && q["weight_block_size"].is_null()) {
      s.block_rows = s.block_columns = 0;
    }
  } else if (s.method == "compressed-tensors") {
    const json& weights = compressed_weights(q, path);
    const std::string format = text(q, "format", "", path);
    s.bits = static_cast<int>(integer(weights, "num_bits", 8, path));
    s.group = std::max<int64_t>(0, integer(weights, "group_size", 0, path));
    if (format == "pack-quantized") {
      s.kind = Scheme::packed_integers;
    } else if (format == "float-quantized" || format == "int-quantized" || format == "naive-quantized") {
      s.kind = Scheme::bytes;
      if (weights.contains("block_structure") && weights["block_structure"].is_array() &&
          weights["block_structure"].size() == 2) {
        s.block_rows = weights["block_structure"][0].get<int64_t>();
        s.block_columns = weights["block_structure"][1].get<int64_t>();
      }
    } else if (format == "mxfp4-pack-quantized") {
      s.kind = Scheme::mxfp4;
    } else if (format == "nvfp4-pack-quantized") {
      s.kind = Scheme::nvfp4;
    } else {
      base::fail(
          "'{}': the format '{}' of compressed-tensors is not read; pack-quantized, float-quantized, int-quantized, "
          "mxfp4-pack-quantized and nvfp4-pack-quantized are",
          path, format);
    }
    s.method += " " + format;
  } else if (s.method == "bitsandbytes" || q.contains("load_in_4bit")) {
    s.kind = Scheme::bitsandbytes;
    s.method = "bitsandbytes";
    s.bits = q.value("load_in_8bit", false) ? 8 : 4;
  } else if (s.method == "mxfp4") {
    s.kind = Scheme::mxfp4;
  } else if (s.method == "modelopt") {
    s.kind = Scheme::modelopt_nvfp4;
    const std::string algorithm = text(q, "quant_algo", "NVFP4", path);
    if (algorithm == "FP8") s.kind = Scheme::bytes;
    SINTER_CHECK(algorithm == "NVFP4" || algorithm == "FP8",
                 "'{}': ModelOpt's quant_algo '{}' is not read; NVFP4 and FP8 are", path, algorithm);
  } else {
    base::fail(
        "'{}': weights quantized with '{}' are not read; gptq, awq (gemm), fp8, compressed-tensors, bitsandbytes, "
        "mxfp4 "
        "and modelopt (NVFP4, FP8) are: take the model's original folder and use `sinter quantize`, or a GGUF file of "
        "it",
        path, s.method);
  }
  return std::unique_ptr<QuantizedFolder>(new QuantizedFolder(std::move(scheme), folder));
}

std::string QuantizedFolder::description() const {
  const Scheme& s = *scheme_;
  std::string size = s.kind == Scheme::bytes ? "8 bits" : fmt::format("{} bits", s.bits);
  if (s.group > 0) size += fmt::format(", groups of {}", s.group);
  if (s.block_rows > 0) size += fmt::format(", blocks of {} x {}", s.block_rows, s.block_columns);
  return s.method + ", " + size;
}

// A module may be left as it is (lm_head, routers, what the config lists): then its plain weight is there.
bool QuantizedFolder::is_quantized(const std::string& module) const {
  if (folder_.find(module + ".qweight") || folder_.find(module + ".weight_packed")) return true;
  const io::TensorEntry* weight = folder_.find(module + ".weight");
  return weight && (!base::is_floating(weight->dtype) || base::is_fp8(weight->dtype));
}

WeightPart QuantizedFolder::read(const std::string& module, int64_t rows, int64_t columns,
                                 std::set<std::string>& used) const {
  const Scheme& s = *scheme_;
  const Size size{rows, columns};
  auto find = [&](std::initializer_list<const char*> endings) -> const io::TensorEntry* {
    for (const char* ending : endings) {
      if (const io::TensorEntry* entry = folder_.find(module + ending)) {
        used.insert(entry->name);
        return entry;
      }
    }
    return nullptr;
  };
  find({".weight_shape"}), find({".input_scale"}), find({".input_global_scale"});  // of no use to us
  PackedTensors t{.name = module};
  switch (s.kind) {
    case Scheme::gptq:
    case Scheme::awq:
      t.codes = find({".qweight"}), t.scales = find({".scales"}), t.zeros = find({".qzeros"}),
      t.groups = find({".g_idx"});
      return s.kind == Scheme::awq ? quantized::unpack_awq(t, size, s.group)
                                   : quantized::unpack_gptq(t, size, s.bits, s.group, s.version);
    case Scheme::packed_integers:
      t.codes = find({".weight_packed"}), t.scales = find({".weight_scale"}), t.zeros = find({".weight_zero_point"}),
      t.groups = find({".weight_g_idx"});
      return quantized::unpack_packed_integers(t, size, s.bits, s.group);
    case Scheme::bytes:
      t.codes = find({".weight"}), t.scales = find({".weight_scale_inv", ".weight_scale"});
      SINTER_CHECK(!find({".weight_zero_point"}), "'{}': '{}' has zero points, which are not read in 8 bits",
                   folder_.path(), module);
      return quantized::unpack_bytes(t, size, s.block_rows, s.block_columns);
    case Scheme::mxfp4:
      t.codes = find({".weight_packed"}), t.scales = find({".weight_scale"});
      return quantized::unpack_mxfp4(t, size);
    case Scheme::nvfp4:
      t.codes = find({".weight_packed"}), t.scales = find({".weight_scale"}),
      t.global_scale = find({".weight_global_scale"});
      return quantized::unpack_nvfp4(t, size, true);
    case Scheme::modelopt_nvfp4:
      t.codes = find({".weight"}), t.scales = find({".weight_scale"}), t.global_scale = find({".weight_scale_2"});
      return quantized::unpack_nvfp4(t, size, false);
    case Scheme::bitsandbytes:
      break;
  }
  t.codes = find({".weight"});
  if (const io::TensorEntry* scb = find({".SCB"})) {  // LLM.int8: a row's largest value over 127
    find({".weight_format"});
    t.scales = scb;
    return quantized::unpack_bytes(t, size, 1, columns, 1.0 / 127.0);
  }
  const io::TensorEntry *nf4 = find({".weight.quant_state.bitsandbytes__nf4"}),
                        *fp4 = find({".weight.quant_state.bitsandbytes__fp4"}), *state = nf4 ? nf4 : fp4;
  const io::TensorEntry *absmax = find({".weight.absmax"}), *nested_absmax = find({".weight.nested_absmax"}),
                        *nested_map = find({".weight.nested_quant_map"});
  find({".weight.quant_map"});
  SINTER_CHECK(state && absmax, "'{}': the weight '{}' lacks its quant_state or absmax", folder_.path(), module);
  const json values = base::parse_json({reinterpret_cast<const char*>(state->bytes.data()), state->bytes.size()},
                                       folder_.path() + ": " + state->name);
  std::vector<float> scales;
  if (nested_absmax) {  // scales in 8 bits: map[code] x largest of 256, plus their mean
    SINTER_CHECK(nested_map && nested_map->num_elements() == 256 && absmax->dtype == DType::u8 &&
                     values.contains("nested_offset"),
                 "'{}': the weight '{}' lacks what its scales are made of", folder_.path(), module);
    const std::vector<float> map = floats_of(*nested_map), largest = floats_of(*nested_absmax);
    const auto offset = values["nested_offset"].get<float>();
    const int64_t block = values.value("nested_blocksize", int64_t{256});
    const auto* codes = reinterpret_cast<const uint8_t*>(absmax->bytes.data());
    for (int64_t i = 0; i < absmax->num_elements(); ++i) {
      SINTER_CHECK(block > 0 && i / block < static_cast<int64_t>(largest.size()), "'{}': tensor '{}' is too short",
                   folder_.path(), nested_absmax->name);
      scales.push_back(map[codes[i]] * largest[static_cast<size_t>(i / block)] + offset);
    }
  } else {
    scales = floats_of(*absmax);
  }
  return quantized::unpack_bitsandbytes(t, size, nf4 ? WeightFormat::nf4 : WeightFormat::fp4, scales,
                                        values.value("blocksize", int64_t{64}));
}

std::set<std::string> QuantizedFolder::tensors_apart(const spec::ModelSpec& spec) const {
  std::set<std::string> names;
  for (const spec::ParameterSpec& info : spec::make_parameter_table(spec)) {
    for (const spec::ParameterPart& part : info.parts) {
      if (info.shape.rank() < 2 || !is_quantized(without_weight(part.hf_name))) continue;
      SINTER_CHECK(!part.transposed, "'{}': quantized weights of {} are not read", scheme_->path,
                   spec::family_name(spec.family));
      names.insert(info.name);
      break;
    }
  }
  return names;
}

namespace {

// One weight part (E, rows, K) of the same rows of every expert.
WeightPart stack_experts(std::vector<WeightPart> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  WeightPart all = parts[0];
  const auto E = static_cast<int64_t>(parts.size());
  auto stack = [&](Tensor WeightPart::*field) {
    if (!(parts[0].*field)) return;
    const Tensor& first = parts[0].*field;
    base::Shape shape = first.shape();
    shape.set(0, E);
    Tensor joined(core::runtime({}).allocator(), shape, first.dtype());
    for (size_t e = 0; e < parts.size(); ++e)
      std::memcpy(static_cast<char*>(joined.raw()) + e * first.bytes(), (parts[e].*field).raw(), first.bytes());
    all.*field = joined;
  };
  for (const WeightPart& part : parts) {
    SINTER_CHECK(!part.permutation && part.format == parts[0].format && part.global_scale == parts[0].global_scale &&
                     static_cast<bool>(part.zeros) == static_cast<bool>(parts[0].zeros),
                 "experts whose groups or formats differ are not read");
  }
  stack(&WeightPart::data), stack(&WeightPart::scales), stack(&WeightPart::zeros);
  return all;
}

WeightPart to_device(WeightPart part, const core::Device& device) {
  if (device.kind == core::DeviceKind::cpu) return part;
  core::DeviceRuntime& runtime = core::runtime(device);
  for (Tensor* t : {&part.data, &part.scales, &part.zeros, &part.permutation}) {
    if (!*t) continue;
    Tensor there(runtime.allocator(), t->shape(), t->dtype());
    send_bytes(runtime, there.raw(), t->raw(), t->bytes());
    *t = there;
  }
  return part;
}

}  // namespace

void QuantizedFolder::load_slot(ParameterStore& store, ParameterStore::Slot& slot, std::set<std::string>& used) const {
  const spec::ParameterSpec& info = slot.info;
  const int64_t columns = info.shape[-1], E = info.shape.rank() == 3 ? info.shape[0] : 1;
  auto blocks = std::make_shared<core::WeightBlocks>();
  *blocks = {.experts = E, .rows = info.shape[-2], .columns = columns};
  // The same rows of all experts are one part.
  for (const spec::ParameterPart& part : info.parts) {
    if (part.expert > 0) continue;
    std::vector<WeightPart> experts;
    for (const spec::ParameterPart& other : info.parts) {
      if (other.row_begin != part.row_begin || (part.expert < 0 && &other != &part)) continue;
      const std::string module = without_weight(other.hf_name);
      if (is_quantized(module)) {
        experts.push_back(read(module, other.rows, columns, used));
        continue;
      }
      const io::TensorEntry& entry = folder_.get(other.hf_name);
      used.insert(entry.name);
      SINTER_CHECK(base::is_floating(entry.dtype) && entry.shape == (std::vector<int64_t>{other.rows, columns}),
                   "'{}': tensor '{}' is {} of {}; expected numbers of ({}, {})", folder_.path(), entry.name,
                   base::dtype_name(entry.dtype), io::shape_to_string(entry.shape), other.rows, columns);
      WeightPart plain{.rows = other.rows};
      plain.data = Tensor(core::runtime({}).allocator(), {1, other.rows, columns}, entry.dtype);
      std::memcpy(plain.data.raw(), entry.bytes.data(), entry.bytes.size());
      experts.push_back(std::move(plain));
    }
    blocks->parts.push_back(stack_experts(std::move(experts)));
  }
  if (slot.is_apart) {
    for (WeightPart& part : blocks->parts) part = to_device(std::move(part), store.options().device);
    return store.set_blocks(slot, std::move(blocks));
  }
  std::vector<float> values(static_cast<size_t>(info.num_elements()));
  const core::WeightView view{.blocks = blocks};
  base::parallel_for(E * blocks->rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      kernels::read_weight_row(view, r / blocks->rows, r % blocks->rows, values.data() + r * columns);
  });
  store.set(slot, values);
}

bool QuantizedFolder::holds(const spec::ParameterPart& part) const {
  return is_quantized(without_weight(part.hf_name));
}

std::vector<float> QuantizedFolder::read_part(const spec::ParameterSpec& info, const spec::ParameterPart& part) const {
  if (info.shape.rank() < 2 || !holds(part)) return {};
  const int64_t columns = info.shape[-1];
  std::set<std::string> used;
  auto blocks = std::make_shared<core::WeightBlocks>();
  *blocks = {
      .rows = part.rows, .columns = columns, .parts = {read(without_weight(part.hf_name), part.rows, columns, used)}};
  std::vector<float> values(static_cast<size_t>(part.rows * columns));
  base::parallel_for(part.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      kernels::read_weight_row({.blocks = blocks}, 0, r, values.data() + r * columns);
  });
  return values;
}

void QuantizedFolder::load(ParameterStore& store, const spec::ModelSpec& spec) const {
  std::set<std::string> used;
  const std::set<std::string> quantized = tensors_apart(spec);
  for (ParameterStore::Slot& slot : store.slots()) {
    if (slot.info.role == spec::ParameterRole::adapter) continue;
    if (quantized.contains(slot.info.name)) {
      load_slot(store, slot, used);
    } else {
      load_plain_slot(store, slot, folder_, used);
    }
  }
  mark_elsewhere(store, spec, folder_, used);
  check_all_used(folder_, spec, used);
}

}  // namespace sinter::models
