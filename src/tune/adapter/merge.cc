#include "tune/adapter/merge.h"

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/threads.h"
#include "io/tensor_folder.h"
#include "models/open_model.h"
#include "models/weights.h"
#include "spec/hf_config.h"
#include "train/export.h"

namespace sinter::tune {

namespace fs = std::filesystem;

namespace {

struct Terms {
  const AdapterTensor *a = nullptr, *b = nullptr, *magnitude = nullptr;
};

// Rows [first_row, first_row + rows) of values += scale b a, then scaled to the norms of the magnitude.
void add_terms(std::vector<float>& values, int64_t columns, const spec::AdapterPlace& place, const Terms& terms,
               bool is_table) {
  // Beside a table a is (V, r) and b (C, r): the sum is a b^T.
  const AdapterTensor &left = is_table ? *terms.a : *terms.b, &right = is_table ? *terms.b : *terms.a;
  const auto r = static_cast<size_t>(left.info.shape[1]), K = static_cast<size_t>(columns);
  base::parallel_for(left.info.shape[0], 4, [&](int64_t begin, int64_t end) {
    std::vector<double> row(K);
    for (auto n = static_cast<size_t>(begin); n < static_cast<size_t>(end); ++n) {
      float* weight = values.data() + (static_cast<size_t>(place.first_row) + n) * K;
      std::fill(row.begin(), row.end(), 0.0);
      for (size_t j = 0; j < r; ++j) {
        const double factor = static_cast<double>(left.values[n * r + j]) * static_cast<double>(place.scale);
        for (size_t k = 0; k < K; ++k)
          row[k] += factor * static_cast<double>(is_table ? right.values[k * r + j] : right.values[j * K + k]);
      }
      double squares = 0;
      for (size_t k = 0; k < K; ++k) {
        row[k] += static_cast<double>(weight[k]);
        squares += row[k] * row[k];
      }
      const double factor =
          terms.magnitude ? static_cast<double>(terms.magnitude->values[n]) / std::sqrt(squares) : 1.0;
      for (size_t k = 0; k < K; ++k) weight[k] = static_cast<float>(row[k] * factor);
    }
  });
}

bool is_changed(const spec::ParameterSpec& info, const std::vector<AdapterTensor>& tensors) {
  for (const AdapterTensor& tensor : tensors) {
    if (tensor.info.name == info.name || tensor.info.adapter.target == info.name) return true;
  }
  return false;
}

}  // namespace

void merge_into(std::vector<float>& values, const spec::ParameterSpec& info,
                const std::vector<AdapterTensor>& tensors) {
  std::map<int64_t, std::pair<spec::AdapterPlace, Terms>> by_row;
  for (const AdapterTensor& tensor : tensors) {
    if (tensor.info.name == info.name) values = tensor.values;  // saved whole
    const spec::AdapterPlace& place = tensor.info.adapter;
    if (place.term == spec::AdapterTerm::none || place.target != info.name) continue;
    auto& [where, terms] = by_row[place.first_row];
    where = place;
    if (place.term == spec::AdapterTerm::a) terms.a = &tensor;
    if (place.term == spec::AdapterTerm::b) terms.b = &tensor;
    if (place.term == spec::AdapterTerm::magnitude) terms.magnitude = &tensor;
  }
  for (const auto& [row, entry] : by_row)
    add_terms(values, info.shape[-1], entry.first, entry.second, info.role == spec::ParameterRole::embedding);
}

std::string base_of(const std::string& adapter) {
  const std::string base = read_peft_config(adapter).base_model;
  SINTER_CHECK(!base.empty(), "'{}' does not name its base model; give it on the command line", adapter);
  const std::string beside = (fs::path(adapter) / base).lexically_normal().string();
  if (fs::exists(fs::path(beside) / "config.json")) return beside;
  SINTER_CHECK(
      fs::exists(fs::path(base) / "config.json"),
      "'{}' names the base model '{}', which is neither a folder here nor beside the adapter; give the folder on "
      "the command line",
      adapter, base);
  return base;
}

MergeResult merge_adapter(const std::string& given_base, const std::string& adapter, const std::string& out,
                          const MergeOptions& options) {
  const std::string base = given_base.empty() ? base_of(adapter) : given_base;
  SINTER_CHECK(!fs::exists(out), "'{}' is there already; name a new folder", out);
  const PeftConfig config = read_peft_config(adapter);
  SINTER_CHECK(!config.is_classifier,
               "'{}' is the adapter of a reward model, which is used as it is (tune.reward_model) and not merged",
               adapter);
  const spec::ModelSpec model = models::load_model_spec(base);
  const std::vector<spec::ParameterSpec> table = spec::make_adapter_table(model, resolve_targets(config, model));
  const std::vector<AdapterTensor> tensors = read_adapter_tensors(adapter, table);
  const io::TensorFolder folder(base);
  for (const spec::ParameterSpec& info : table) {
    SINTER_CHECK(
        !(info.role == spec::ParameterRole::embedding && model.tied_head && is_changed(info, tensors)),
        "'{}': the adapter changes the token table, which is this model's head too; a merged model cannot keep "
        "the two apart",
        adapter);
  }
  base::create_folders(out);
  io::TensorFolderWriter writer(out);
  std::vector<spec::ParameterSpec> own;
  for (const spec::ParameterSpec& info : table) {
    if (info.role == spec::ParameterRole::adapter) continue;
    own.push_back(info);
    for (const spec::ParameterPart& part : info.parts)
      writer.declare(part.hf_name, options.dtype, models::part_shape(info, part));
  }
  MergeResult result;
  std::vector<std::byte> bytes;
  for (const spec::ParameterSpec& info : own) {
    std::vector<float> values = models::join_parts(info, [&](const spec::ParameterPart& part, const auto& shape) {
      const io::TensorEntry& entry = folder.get(part.hf_name);
      SINTER_CHECK(
          entry.shape == shape && base::is_floating(entry.dtype),
          "'{}': tensor '{}' is {} {}; expected numbers of shape {}. A quantized base is merged from the model it "
          "was made of",
          base, entry.name, base::dtype_name(entry.dtype), io::shape_to_string(entry.shape),
          io::shape_to_string(shape));
      std::vector<float> disk(static_cast<size_t>(entry.num_elements()));
      base::convert_elements(entry.dtype, entry.bytes.data(), base::DType::f32, disk.data(), disk.size());
      return disk;
    });
    ++result.tensors;
    if (is_changed(info, tensors)) {
      merge_into(values, info, tensors);
      ++result.changed;
    }
    for (const models::DiskTensor& part : models::split_parts(info, values)) {
      bytes.resize(part.values.size() * base::dtype_bytes(options.dtype));
      base::convert_elements(base::DType::f32, part.values.data(), options.dtype, bytes.data(), part.values.size());
      writer.write(part.name, bytes);
    }
  }
  writer.commit();
  const std::string name = options.dtype == base::DType::f32   ? "float32"
                           : options.dtype == base::DType::f16 ? "float16"
                                                               : "bfloat16";
  base::save_json(out + "/config.json", spec::make_hf_config(model, name));
  const std::string tokenizer = fs::exists(fs::path(adapter) / "tokenizer.json") ? adapter : base;
  for (const train::NamedFile& file : train::read_tokenizer_files(tokenizer)) {
    base::create_folders((fs::path(out) / file.name).parent_path().string());
    base::write_file_atomic((fs::path(out) / file.name).string(), file.bytes);
  }
  return result;
}

}  // namespace sinter::tune
