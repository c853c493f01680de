#include "tune/adapter/gguf_adapter.h"

#include <cmath>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "io/gguf.h"
#include "io/gguf_writer.h"
#include "models/gguf.h"
#include "spec/families.h"
#include "spec/parameters.h"

namespace sinter::tune {
namespace {

namespace fs = std::filesystem;

constexpr const char *kA = ".lora_a", *kB = ".lora_b", *kAlpha = "adapter.lora.alpha";

// A weight of the base that may have an adapter.
struct Place {
  std::string module;  // "model.layers.0.mlp.up_proj"
  std::string name;    // "blk.0.ffn_up.weight"
  int64_t rows = 0, columns = 0, paired_heads = 0;
};

std::vector<Place> places_of(const spec::ModelSpec& base) {
  std::vector<Place> places;
  for (const spec::ParameterSpec& info : spec::make_parameter_table(base)) {
    if (info.role != spec::ParameterRole::matrix) continue;
    for (const spec::ParameterPart& part : info.parts) {
      places.push_back({part.hf_name.substr(0, part.hf_name.rfind('.')), spec::gguf_place(part).name, part.rows,
                        info.shape[-1], spec::paired_heads_in_gguf(base, part)});
    }
  }
  return places;
}

std::string peft_name_of(const Place& place, bool is_a) {
  return spec::kPeftPrefix + place.module + (is_a ? ".lora_A.weight" : ".lora_B.weight");
}

// Row r of b, in PEFT's order, in the file's.
int64_t row_in_file(const Place& place, int64_t r) {
  if (place.paired_heads == 0) return r;
  const int64_t head_dim = place.rows / place.paired_heads;
  return r / head_dim * head_dim + models::paired_row(r % head_dim, head_dim);
}

std::vector<float> values_of(const io::GgufFile& file, const io::GgufTensor& tensor) {
  SINTER_CHECK(
      tensor.shape.size() == 2 && tensor.format == base::WeightFormat::plain && base::is_floating(tensor.dtype),
      "'{}': tensor '{}' is {} with {} axes; expected a matrix in f32, f16 or bf16", file.path(), tensor.name,
      tensor.type_name(), tensor.shape.size());
  std::vector<float> values(static_cast<size_t>(tensor.shape[0] * tensor.shape[1]));
  base::convert_elements(tensor.dtype, tensor.bytes.data(), base::DType::f32, values.data(), values.size());
  return values;
}

void turn_rows(const Place& place, std::vector<float>& b, bool to_file) {
  const int64_t r = std::ssize(b) / place.rows;
  std::vector<float> turned(b.size());
  for (int64_t row = 0; row < place.rows; ++row) {
    const int64_t there = row_in_file(place, row), from = to_file ? row : there, to = to_file ? there : row;
    std::copy_n(b.begin() + from * r, r, turned.begin() + to * r);
  }
  b = std::move(turned);
}

// Short names where every module of that ending has an adapter, else whole ones.
std::vector<std::string> targets_of(const std::vector<Place>& places, const std::set<std::string>& found) {
  auto ending = [](const std::string& module) { return module.substr(module.rfind('.') + 1); };
  std::map<std::string, bool> is_whole;
  for (const Place& place : places) {
    auto [entry, is_new] = is_whole.try_emplace(ending(place.module), true);
    entry->second = entry->second && found.contains(place.module);
  }
  std::set<std::string> targets;
  for (const std::string& module : found) targets.insert(is_whole.at(ending(module)) ? ending(module) : module);
  return {targets.begin(), targets.end()};
}

}  // namespace

bool is_gguf_adapter(const std::string& path) {
  if (!fs::is_regular_file(path) || !io::is_gguf(path)) return false;
  return io::GgufFile(path).text("general.type", "model") == "adapter";
}

GgufAdapter read_gguf_adapter(const std::string& path, const spec::ModelSpec& base) {
  const io::GgufFile file(path);
  SINTER_CHECK(file.text("general.type", "") == "adapter" && file.text("adapter.type", "") == "lora",
               "'{}': general.type is '{}' and adapter.type '{}'; expected 'adapter' and 'lora'", path,
               file.text("general.type", ""), file.text("adapter.type", ""));
  const std::string architecture = file.text("general.architecture");
  SINTER_CHECK(architecture == spec::info_of(base.family).gguf_architecture,
               "'{}' is an adapter of architecture '{}'; the base is '{}'", path, architecture,
               spec::info_of(base.family).gguf_architecture);
  GgufAdapter out;
  out.config.adapter.alpha = file.number(kAlpha);
  SINTER_CHECK(std::isfinite(out.config.adapter.alpha), "'{}': {} is not finite", path, kAlpha);
  const std::vector<Place> places = places_of(base);
  std::set<std::string> used, modules;
  std::map<std::string, int64_t> ranks;
  for (const Place& place : places) {
    const io::GgufTensor *a = file.find_tensor(place.name + kA), *b = file.find_tensor(place.name + kB);
    if (!a && !b) continue;
    SINTER_CHECK(a && b, "'{}': tensor '{}' has no '{}' beside it", path, (a ? a : b)->name,
                 place.name + (a ? kB : kA));
    std::vector<float> left = values_of(file, *a), right = values_of(file, *b);
    const int64_t r = a->shape[0];
    SINTER_CHECK(r >= 1 && a->shape[1] == place.columns && b->shape[0] == place.rows && b->shape[1] == r,
                 "'{}': '{}' is ({}, {}) and '{}' ({}, {}); the base's weight is ({}, {})", path, a->name, a->shape[0],
                 a->shape[1], b->name, b->shape[0], b->shape[1], place.rows, place.columns);
    turn_rows(place, right, false);
    out.tensors[peft_name_of(place, true)] = std::move(left);
    out.tensors[peft_name_of(place, false)] = std::move(right);
    modules.insert(place.module), used.insert(a->name), used.insert(b->name);
    ranks[place.module] = r;
  }
  for (const io::GgufTensor& tensor : file.tensors())
    SINTER_CHECK(used.contains(tensor.name),
                 "'{}': tensor '{}' has no place: adapters stand beside the linear layers of the base's blocks", path,
                 tensor.name);
  SINTER_CHECK(!modules.empty(), "'{}' has no tensors", path);
  out.config.adapter.rank = ranks.begin()->second;
  for (const auto& [module, r] : ranks) {
    if (r != out.config.adapter.rank) out.config.adapter.rank_pattern[module] = r;
  }
  out.config.adapter.targets = targets_of(places, modules);
  return out;
}

void gguf_adapter_to_folder(const std::string& path, const spec::ModelSpec& base, const std::string& out) {
  SINTER_CHECK(!fs::exists(out), "'{}' is there already; name a new folder", out);
  const GgufAdapter adapter = read_gguf_adapter(path, base);
  const std::vector<spec::ParameterSpec> table = spec::make_adapter_table(base, adapter.config.adapter);
  std::vector<core::Tensor> tensors;
  for (const spec::ParameterSpec& info : table) {
    if (!spec::is_adapter_tensor(info)) continue;
    tensors.push_back(core::make_tensor(core::runtime({}).allocator(), info.shape,
                                        adapter.tensors.at(peft_name(info, info.parts[0]))));
  }
  base::create_folders(out);
  write_adapter_tensors(out, table, tensors);
  write_peft_config(out, adapter.config, base);
}

void folder_to_gguf_adapter(const std::string& folder, const spec::ModelSpec& base, const std::string& out) {
  const PeftConfig config = read_peft_config(folder);
  const spec::AdapterSpec& adapter = config.adapter;
  SINTER_CHECK(!adapter.dora && adapter.modules_to_save.empty() && adapter.alpha_pattern.empty(),
               "'{}': a GGUF file cannot say {}; merge the adapter instead", folder,
               adapter.dora                      ? "use_dora"
               : adapter.modules_to_save.empty() ? "alpha_pattern"
                                                 : "modules_to_save");
  SINTER_CHECK(!adapter.rslora || adapter.rank_pattern.empty(),
               "'{}': a GGUF file cannot say use_rslora with several ranks; merge the adapter instead", folder);
  std::map<std::string, std::vector<float>> tensors;
  std::map<std::string, int64_t> ranks;
  for (AdapterTensor& tensor : read_adapter_tensors(folder, spec::make_adapter_table(base, adapter))) {
    const std::string name = peft_name(tensor.info, tensor.info.parts[0]);
    if (tensor.info.adapter.term == spec::AdapterTerm::a) ranks[name] = tensor.info.shape[0];
    tensors[name] = std::move(tensor.values);
  }
  io::GgufWriter writer;
  writer.set_text("general.architecture", spec::info_of(base.family).gguf_architecture);
  writer.set_text("general.type", "adapter");
  writer.set_text("adapter.type", "lora");
  // The reader's scale is alpha / rank.
  const double alpha = adapter.rslora ? adapter.alpha * std::sqrt(static_cast<double>(adapter.rank)) : adapter.alpha;
  writer.set_f32(kAlpha, static_cast<float>(alpha));
  writer.set_u32("general.quantization_version", 2);
  std::vector<Place> places;
  for (const Place& place : places_of(base)) {
    const auto a = tensors.find(peft_name_of(place, true));
    if (a == tensors.end()) continue;
    const int64_t r = ranks.at(a->first);
    writer.declare(place.name + kA, base::WeightFormat::plain, base::DType::f32, {r, place.columns});
    writer.declare(place.name + kB, base::WeightFormat::plain, base::DType::f32, {place.rows, r});
    places.push_back(place);
  }
  SINTER_CHECK(2 * places.size() == tensors.size(),
               "'{}' has adapters beside the token table, which a GGUF file cannot say; merge it instead", folder);
  const size_t done = writer.open(out);
  for (size_t i = done; i < 2 * places.size(); ++i) {
    const Place& place = places[i / 2];
    std::vector<float> values = tensors.at(peft_name_of(place, i % 2 == 0));
    if (i % 2 == 1) turn_rows(place, values, true);
    writer.write(std::as_bytes(std::span(values)));
  }
  writer.commit();
}

}  // namespace sinter::tune
