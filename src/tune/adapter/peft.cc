#include "tune/adapter/peft.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "core/host_copy.h"
#include "eval/tasks/python_regex.h"
#include "io/safetensors.h"
#include "models/weights.h"

namespace sinter::tune {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kTensorFile = "adapter_model.safetensors";

// Keys of variants that change what an adapter computes. They must be off: null, false, empty or "none".
constexpr const char* kRefused[] = {
    "use_qalora",  "use_bdlora",        "alora_invocation_tokens", "trainable_token_indices",
    "lora_bias",   "layer_replication", "target_parameters",       "arrow_config",
    "kasa_config", "velora_config",     "monteclora_config"};

bool is_off(const json& value) {
  return value.is_null() || value == false || value == "none" ||
         ((value.is_array() || value.is_object()) && value.empty());
}

// Names of modules; a text instead of a list goes to `pattern`, where there is one.
std::vector<std::string> names_of(const json& config, const char* key, const std::string& path,
                                  std::string* pattern = nullptr) {
  if (!config.contains(key) || config[key].is_null()) return {};
  const json& value = config[key];
  if (value.is_string() && (value == "all-linear" || !pattern)) return {value.get<std::string>()};
  if (value.is_string()) {
    *pattern = value.get<std::string>();
    return {};
  }
  SINTER_CHECK(value.is_array(), "'{}': {} is {}; expected a list of modules", path, key, value.type_name());
  std::vector<std::string> names;
  for (const json& name : value) {
    SINTER_CHECK(name.is_string(), "'{}': {} holds {}; expected names of modules", path, key, name.type_name());
    names.push_back(name.get<std::string>());
  }
  return names;
}

std::vector<int64_t> layers_of(const json& config, const std::string& path) {
  constexpr const char* kKey = "layers_to_transform";
  if (!config.contains(kKey) || config[kKey].is_null()) return {};
  const json list = config[kKey].is_array() ? config[kKey] : json::array({config[kKey]});
  std::vector<int64_t> layers;
  for (const json& layer : list) {
    SINTER_CHECK(layer.is_number_integer(), "'{}': {} holds {}; expected numbers of layers", path, kKey, layer.dump());
    layers.push_back(layer.get<int64_t>());
  }
  return layers;
}

template <class T>
std::map<std::string, T> pattern_of(const json& config, const char* key, const std::string& path) {
  std::map<std::string, T> pattern;
  if (!config.contains(key) || config[key].is_null()) return pattern;
  SINTER_CHECK(config[key].is_object(), "'{}': {} is {}; expected module names with numbers", path, key,
               config[key].type_name());
  for (const auto& [name, value] : config[key].items()) {
    SINTER_CHECK(value.is_number(), "'{}': {} of '{}' is {}; expected a number", path, key, name, value.type_name());
    pattern[name.starts_with('^') ? name.substr(1) : name] = value.template get<T>();
  }
  return pattern;
}

double number_of(const json& config, const char* key, double otherwise, const std::string& path) {
  if (!config.contains(key) || config[key].is_null()) return otherwise;
  SINTER_CHECK(config[key].is_number(), "'{}': {} is {}; expected a number", path, key, config[key].type_name());
  return config[key].get<double>();
}

bool flag_of(const json& config, const char* key) { return config.contains(key) && config[key] == true; }

}  // namespace

bool is_adapter_folder(const std::string& folder) { return fs::exists(fs::path(folder) / kConfigFile); }

PeftConfig read_peft_config(const std::string& folder) {
  const std::string path = (fs::path(folder) / kConfigFile).string();
  const json config = json::parse(base::read_file(path), nullptr, false);
  SINTER_CHECK(config.is_object(), "'{}' is not a JSON object", path);
  SINTER_CHECK(config.value("peft_type", json("LORA")) == "LORA", "'{}': peft_type is {}; expected \"LORA\"", path,
               config["peft_type"].dump());
  for (const char* key : kRefused) {
    SINTER_CHECK(!config.contains(key) || is_off(config[key]), "'{}': {} is {}; this kind of adapter is not supported",
                 path, key, config[key].dump());
  }
  SINTER_CHECK(config.value("bias", json("none")) == "none", "'{}': bias is {}; expected \"none\"", path,
               config["bias"].dump());
  PeftConfig out;
  out.adapter.rank = static_cast<int64_t>(number_of(config, "r", 8, path));
  out.adapter.alpha = number_of(config, "lora_alpha", 8, path);
  out.adapter.dropout = number_of(config, "lora_dropout", 0, path);
  out.adapter.rslora = flag_of(config, "use_rslora");
  out.adapter.dora = flag_of(config, "use_dora");
  out.adapter.targets = names_of(config, "target_modules", path, &out.pattern);
  out.layers = layers_of(config, path);
  const std::vector<std::string> before = names_of(config, "layers_pattern", path);
  SINTER_CHECK(before.size() <= 1, "'{}': layers_pattern has {} texts; expected one", path, before.size());
  if (!before.empty()) out.layers_pattern = before[0];
  out.excluded = names_of(config, "exclude_modules", path, &out.excluded_pattern);
  out.adapter.modules_to_save = names_of(config, "modules_to_save", path);
  out.adapter.rank_pattern = pattern_of<int64_t>(config, "rank_pattern", path);
  out.adapter.alpha_pattern = pattern_of<double>(config, "alpha_pattern", path);
  out.is_classifier = config.value("task_type", json()) == "SEQ_CLS";
  if (config.contains("base_model_name_or_path") && config["base_model_name_or_path"].is_string())
    out.base_model = config["base_model_name_or_path"].get<std::string>();
  return out;
}

namespace {

bool is_module_end(const std::string& module, const std::string& end) {
  return module == end || module.ends_with("." + end);
}

// "model.layers.3.mlp.up_proj": 3, the number behind the first part that may be a list of layers; -1: none.
int64_t layer_of(const std::string& module, const std::string& before) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= module.size();) {
    const size_t dot = std::min(module.find('.', at), module.size());
    parts.push_back(module.substr(at, dot - at));
    at = dot + 1;
  }
  for (size_t i = 1; i + 1 < parts.size(); ++i) {
    const bool is_number = !parts[i].empty() && parts[i].find_first_not_of("0123456789") == std::string::npos;
    if (is_number && (before.empty() || parts[i - 1] == before)) return std::stoll(parts[i]);
  }
  return -1;
}

bool is_whole_match(const std::string& pattern, const std::string& text) {
  return eval::PythonRegex("(?:" + pattern + ")$").search(text, nullptr, true);
}

}  // namespace

spec::AdapterSpec resolve_targets(const PeftConfig& config, const spec::ModelSpec& model) {
  spec::AdapterSpec adapter = config.adapter;
  if (config.pattern.empty() && config.layers.empty() && config.excluded.empty() && config.excluded_pattern.empty())
    return adapter;
  const bool is_all = adapter.targets == std::vector<std::string>{"all-linear"};
  auto is_target = [&](const spec::ParameterSpec& p, const std::string& module) {
    if (!config.pattern.empty()) return is_whole_match(config.pattern, module);
    if (is_all) return p.role == spec::ParameterRole::matrix;
    return std::any_of(adapter.targets.begin(), adapter.targets.end(),
                       [&](const std::string& end) { return is_module_end(module, end); });
  };
  auto is_kept = [&](const std::string& module) {
    if (!config.excluded_pattern.empty() && is_whole_match(config.excluded_pattern, module)) return false;
    for (const std::string& end : config.excluded) {
      if (is_module_end(module, end)) return false;
    }
    const int64_t layer = config.layers.empty() ? 0 : layer_of(module, config.layers_pattern);
    return config.layers.empty() || std::find(config.layers.begin(), config.layers.end(), layer) != config.layers.end();
  };
  std::vector<std::string> names;
  for (const spec::ParameterSpec& p : spec::make_parameter_table(model)) {
    if (p.role == spec::ParameterRole::norm) continue;
    for (const spec::ParameterPart& part : p.parts) {
      if (!part.hf_name.ends_with(".weight")) continue;
      const std::string module = part.hf_name.substr(0, part.hf_name.size() - 7);
      if (is_target(p, module) && is_kept(module)) names.push_back(module);
    }
  }
  SINTER_CHECK(!names.empty(), "the adapter's target_modules, layers_to_transform and exclude_modules leave no module");
  adapter.targets = names;
  return adapter;
}

void write_peft_config(const std::string& folder, const PeftConfig& config, const spec::ModelSpec& model) {
  const spec::AdapterSpec& a = config.adapter;
  json out{{"peft_type", "LORA"},
           {"task_type", config.is_classifier ? "SEQ_CLS" : "CAUSAL_LM"},
           {"base_model_name_or_path", config.base_model.empty() ? json(nullptr) : json(config.base_model)},
           {"inference_mode", true},
           {"r", a.rank},
           {"lora_alpha", a.alpha},
           {"lora_dropout", a.dropout},
           {"use_rslora", a.rslora},
           {"use_dora", a.dora},
           {"bias", "none"},
           {"fan_in_fan_out", model.family == spec::Family::gpt2},
           {"init_lora_weights", true},
           {"rank_pattern", a.rank_pattern},
           {"alpha_pattern", a.alpha_pattern},
           {"modules_to_save", a.modules_to_save.empty() ? json(nullptr) : json(a.modules_to_save)}};
  if (a.targets.size() == 1 && a.targets[0] == "all-linear") {
    out["target_modules"] = a.targets[0];
  } else {
    out["target_modules"] = a.targets;
  }
  if (a.alpha == std::floor(a.alpha)) out["lora_alpha"] = static_cast<int64_t>(a.alpha);
  base::save_json((fs::path(folder) / kConfigFile).string(), out);
}

std::string peft_name(const spec::ParameterSpec& info, const spec::ParameterPart& part) {
  return info.role == spec::ParameterRole::adapter ? part.hf_name : spec::kPeftPrefix + part.hf_name;
}

std::vector<AdapterTensor> read_adapter_tensors(const std::string& folder,
                                                const std::vector<spec::ParameterSpec>& table) {
  const io::SafetensorsFile file((fs::path(folder) / kTensorFile).string());
  std::set<std::string> used;
  std::vector<AdapterTensor> tensors;
  for (const spec::ParameterSpec& info : table) {
    if (!spec::is_adapter_tensor(info)) continue;
    auto read = [&](const spec::ParameterPart& part, const std::vector<int64_t>& shape) {
      const std::string name = peft_name(info, part);
      const io::TensorEntry* entry = file.find(name);
      if (!entry) entry = file.find(name + ".weight");  // magnitudes of older versions
      SINTER_CHECK(entry, "'{}' has no tensor '{}', which {} asks for", file.path(), name, kConfigFile);
      SINTER_CHECK(entry->shape == shape, "'{}': tensor '{}' has shape {}; expected {}", file.path(), name,
                   io::shape_to_string(entry->shape), io::shape_to_string(shape));
      SINTER_CHECK(base::is_floating(entry->dtype), "'{}': tensor '{}' is {}; expected f32, bf16 or f16", file.path(),
                   name, base::dtype_name(entry->dtype));
      used.insert(entry->name);
      std::vector<float> values(static_cast<size_t>(entry->num_elements()));
      base::convert_elements(entry->dtype, entry->bytes.data(), base::DType::f32, values.data(), values.size());
      return values;
    };
    tensors.push_back({info, models::join_parts(info, read)});
  }
  for (const io::TensorEntry& entry : file.entries()) {
    SINTER_CHECK(used.count(entry.name) || entry.name.find(".base_layer.") != std::string::npos,
                 "'{}': tensor '{}' has no place in this adapter", file.path(), entry.name);
  }
  return tensors;
}

namespace {

std::vector<spec::ParameterSpec> table_of(const models::ParameterStore& store) {
  std::vector<spec::ParameterSpec> table;
  for (const auto& slot : store.slots()) table.push_back(slot.info);
  return table;
}

models::ParameterStore::Slot& slot_of(models::ParameterStore& store, const std::string& name) {
  for (auto& slot : store.slots()) {
    if (slot.info.name == name) return slot;
  }
  base::fail("[adapter] no tensor '{}'", name);
}

}  // namespace

void load_adapter(models::ParameterStore& store, const std::string& folder) {
  load_adapter(store, folder, table_of(store));
}

void load_adapter(models::ParameterStore& store, const std::string& folder,
                  const std::vector<spec::ParameterSpec>& table) {
  for (const AdapterTensor& tensor : read_adapter_tensors(folder, table)) {
    if (store.find(tensor.info.name)) store.set_global(slot_of(store, tensor.info.name), tensor.values);
  }
}

void write_adapter_tensors(const std::string& folder, const std::vector<spec::ParameterSpec>& table,
                           std::span<const core::Tensor> values) {
  std::vector<spec::ParameterSpec> own;
  for (const spec::ParameterSpec& info : table) {
    if (spec::is_adapter_tensor(info)) own.push_back(info);
  }
  SINTER_CHECK(own.size() == values.size(), "[adapter] {} tensors for {} places", values.size(), own.size());
  io::SafetensorsWriter writer((fs::path(folder) / kTensorFile).string());
  std::vector<float> scratch;
  std::vector<models::DiskTensor> parts;
  for (size_t i = 0; i < own.size(); ++i) {
    size_t at = 0;
    for (models::DiskTensor& part : models::split_parts(own[i], core::host_floats(values[i], scratch))) {
      part.name = peft_name(own[i], own[i].parts[at++]);
      writer.declare(part.name, base::DType::f32, part.shape);
      parts.push_back(std::move(part));
    }
  }
  for (const models::DiskTensor& part : parts) writer.write(part.name, std::as_bytes(std::span(part.values)));
  writer.commit();
}

void initialize_adapter(models::ParameterStore& store, uint64_t seed) {
  for (auto& slot : store.slots()) {
    if (slot.info.role != spec::ParameterRole::adapter) continue;
    if (slot.info.adapter.term != spec::AdapterTerm::magnitude) {
      store.draw(slot, seed);
      continue;
    }
    const models::ParameterStore::Slot& weight = slot_of(store, slot.info.adapter.target);
    const std::vector<float> values = store.values_of(weight);
    const auto columns = static_cast<size_t>(weight.info.shape[-1]);
    std::vector<float> norms(static_cast<size_t>(slot.info.adapter.rows));
    for (size_t r = 0; r < norms.size(); ++r) {
      const float* row = values.data() + (static_cast<size_t>(slot.info.adapter.first_row) + r) * columns;
      double sum = 0;
      for (size_t c = 0; c < columns; ++c) sum += static_cast<double>(row[c]) * static_cast<double>(row[c]);
      norms[r] = static_cast<float>(std::sqrt(sum));
    }
    store.set(slot, norms);
  }
}

}  // namespace sinter::tune
