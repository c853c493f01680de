#include "quant/quantize.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "base/threads.h"
#include "io/tensor_folder.h"
#include "models/gguf_export.h"
#include "models/part_reader.h"
#include "models/weights.h"
#include "quant/encode.h"
#include "quant/mixes.h"
#include "spec/hf_config.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/gguf.h"

namespace sinter::quant {
namespace {

namespace fs = std::filesystem;
using models::GgufExportTensor;
using models::PartReader;

constexpr const char* kRopeTensor = "rope_freqs.weight";

std::string type_name(const TensorFormat& format) {
  return std::string(format.format == base::WeightFormat::plain ? base::dtype_name(format.dtype)
                                                                : base::name_of(format.format));
}

bool is_matrix(const GgufExportTensor& tensor) {
  using spec::ParameterRole;
  const ParameterRole role = tensor.info->role;
  return tensor.info->shape.rank() >= 2 && role != ParameterRole::router && role != ParameterRole::position;
}

TensorFormat stored_format(const PartReader& reader, const GgufExportTensor& tensor) {
  if (!is_matrix(tensor)) return {};
  if (reader.is_quantized(*tensor.parts[0])) return {base::WeightFormat::plain, base::DType::f16};
  const base::DType dtype = reader.stored_dtype(*tensor.info, *tensor.parts[0]);
  return {base::WeightFormat::plain, dtype == base::DType::f64 ? base::DType::f32 : dtype};
}

// One tensor of all its parts in the file's order and format.
std::vector<std::byte> encode_tensor(const PartReader& reader, const GgufExportTensor& tensor,
                                     const TensorFormat& format, const Importance& importance) {
  const int64_t columns = tensor.columns(), rows = tensor.rows();
  const bool is_plain = format.format == base::WeightFormat::plain;
  const int64_t row_bytes = is_plain ? columns * static_cast<int64_t>(base::dtype_bytes(format.dtype))
                                     : base::bytes_of(format.format, columns);
  std::vector<std::byte> bytes(tensor.parts.size() * static_cast<size_t>(rows * row_bytes));
  const auto found = importance.find(tensor.name);
  for (size_t e = 0; e < tensor.parts.size(); ++e) {
    const std::vector<float> values = to_gguf_order(tensor, reader.read(*tensor.info, *tensor.parts[e]));
    std::byte* to = bytes.data() + static_cast<int64_t>(e) * rows * row_bytes;
    const float* weights = nullptr;
    if (found != importance.end() && found->second.size() == tensor.parts.size() * static_cast<size_t>(columns))
      weights = found->second.data() + static_cast<int64_t>(e) * columns;
    base::parallel_for(rows, 8, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* row = values.data() + r * columns;
        if (is_plain) {
          base::convert_elements(base::DType::f32, row, format.dtype, to + r * row_bytes, static_cast<size_t>(columns));
        } else {
          encode_row(format.format, row, weights, columns, reinterpret_cast<uint8_t*>(to + r * row_bytes));
        }
      }
    });
  }
  return bytes;
}

std::map<std::string, std::string> chat_templates(const std::string& model) {
  std::map<std::string, std::string> templates;
  if (!tokenizer::ChatTemplate::exists(model)) return templates;
  const auto chat = tokenizer::ChatTemplate::load(model);
  for (const std::string& name : chat.names()) templates[name] = chat.source(name);
  return templates;
}

void set_metadata(io::GgufWriter& writer, const PartReader& reader, uint32_t file_type) {
  if (const io::GgufFile* file = reader.gguf()) {
    for (const auto& [key, value] : file->header().metadata) {
      const bool is_ours = key == "general.file_type" || key == "general.alignment" || key.starts_with("sinter.") ||
                           key.starts_with("split.");
      if (!is_ours) writer.copy(key, value);
    }
  } else {
    const fs::path folder = fs::weakly_canonical(reader.path());
    models::set_model_metadata(writer, reader.spec(), folder.filename().string());
    if (fs::exists(folder / "tokenizer.json") || fs::exists(folder / "tokenizer.model")) {
      models::set_tokenizer_metadata(writer, tokenizer::Tokenizer::load(reader.path()), reader.spec(),
                                     chat_templates(reader.path()));
    } else {
      base::log_warning("'{}' has no tokenizer, and so will the file not", reader.path());
    }
  }
  writer.set_u32("general.file_type", file_type);
}

}  // namespace

std::vector<WrittenTensor> write_gguf(const std::string& model, const std::string& out, const GgufOptions& options,
                                      const OnQuantized& on_progress) {
  const Mix* mix = find_mix(options.type);
  if (!options.type.empty() && !mix) {
    std::vector<std::string> names;
    for (const Mix& other : mixes()) names.emplace_back(other.name);
    base::fail("there is no type '{}'{}; known: {}", options.type, base::did_you_mean(options.type, names),
               fmt::join(names, ", "));
  }
  const PartReader reader(model);
  const std::vector<spec::ParameterSpec> table = spec::make_parameter_table(reader.spec());
  const std::vector<GgufExportTensor> tensors = models::gguf_tensors(reader.spec(), table);
  std::vector<TensorFormat> formats;
  uint32_t file_type = mix ? mix->file_type : 1;
  for (const GgufExportTensor& tensor : tensors) {
    formats.push_back(mix ? format_of(*mix, tensor, reader.spec(), !options.importance.empty())
                          : stored_format(reader, tensor));
    if (!mix && is_matrix(tensor) && formats.back().dtype == base::DType::f32) file_type = 0;
    if (!mix && is_matrix(tensor) && formats.back().dtype == base::DType::bf16) file_type = 32;
  }
  io::GgufWriter writer;
  set_metadata(writer, reader, file_type);
  if (options.reserves_quality) {
    for (const char* key : kQualityKeys) writer.set_f64(key, 0);
  }
  const std::vector<float> divisors = models::gguf_rope_divisors(reader.spec());
  if (!divisors.empty())
    writer.declare(kRopeTensor, base::WeightFormat::plain, base::DType::f32, {static_cast<int64_t>(divisors.size())});
  std::vector<WrittenTensor> written;
  Progress progress{.count = tensors.size()};
  for (size_t i = 0; i < tensors.size(); ++i) {
    writer.declare(tensors[i].name, formats[i].format, formats[i].dtype, tensors[i].shape());
    int64_t elements = 1;
    for (int64_t axis : tensors[i].shape()) elements *= axis;
    const bool is_plain = formats[i].format == base::WeightFormat::plain;
    const uint64_t bytes = is_plain ? static_cast<uint64_t>(elements) * base::dtype_bytes(formats[i].dtype)
                                    : static_cast<uint64_t>(base::bytes_of(formats[i].format, elements));
    written.push_back({tensors[i].name, type_name(formats[i]), bytes});
    progress.bytes += bytes;
  }
  const size_t offset = divisors.empty() ? 0 : 1, begin = writer.open(out);
  if (begin > 0)
    base::log_info("going on with '{}.part': {} of {} tensors are there", out, begin, tensors.size() + offset);
  if (offset > begin) writer.write(std::as_bytes(std::span(divisors)));
  for (size_t i = 0; i < tensors.size(); ++i) {
    progress.done = i;
    progress.tensor = tensors[i].name;
    if (on_progress) on_progress(progress);
    progress.bytes_done += written[i].bytes;
    if (i + offset < begin) continue;
    writer.write(encode_tensor(reader, tensors[i], formats[i], options.importance));
  }
  writer.commit();
  return written;
}

namespace {

const char* hf_dtype_name(base::DType dtype) {
  return dtype == base::DType::f32 ? "float32" : dtype == base::DType::f16 ? "float16" : "bfloat16";
}

base::DType folder_dtype(const PartReader& reader, const std::vector<spec::ParameterSpec>& table,
                         const std::string& name) {
  if (!name.empty()) return base::parse_dtype(name);
  base::DType found = base::DType::f32;
  bool is_first = true;
  for (const spec::ParameterSpec& info : table) {
    if (info.shape.rank() < 2 || info.role == spec::ParameterRole::router || info.role == spec::ParameterRole::position)
      continue;
    for (const spec::ParameterPart& part : info.parts) {
      const base::DType dtype = reader.stored_dtype(info, part);
      if (reader.is_quantized(part) || (!is_first && dtype != found)) return base::DType::f16;
      found = dtype;
      is_first = false;
    }
  }
  return found == base::DType::f64 ? base::DType::f32 : found;
}

}  // namespace

void copy_tokenizer(const PartReader& reader, const std::string& out) {
  if (reader.gguf()) {
    if (!reader.gguf()->find("tokenizer.ggml.model")) return;
    tokenizer::Tokenizer::load(reader.path()).save(out);
    for (const auto& [name, source] : tokenizer::chat_templates_of(*reader.gguf())) {
      const std::string file =
          name == "default" ? "/chat_template.jinja" : "/additional_chat_templates/" + name + ".jinja";
      if (name != "default") base::create_folders(out + "/additional_chat_templates");
      base::write_file_atomic(out + file, source);
    }
    return;
  }
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json",
                           "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "chat_template.json",
                           "generation_config.json"}) {
    const fs::path from = fs::path(reader.path()) / name;
    if (fs::exists(from)) base::write_file_atomic(out + "/" + name, base::read_file(from.string()));
  }
}

void write_folder(const std::string& model, const std::string& out, const std::string& dtype_name,
                  const OnQuantized& on_progress) {
  const PartReader reader(model);
  const std::vector<spec::ParameterSpec> table = spec::make_parameter_table(reader.spec());
  const base::DType dtype = folder_dtype(reader, table, dtype_name);
  SINTER_CHECK(dtype == base::DType::f32 || dtype == base::DType::f16 || dtype == base::DType::bf16,
               "weights of a folder are f32, f16 or bf16, not '{}'", dtype_name);
  // Unless a type is asked for, what is stored as plain numbers stays as it is: norms of GGUF files are in f32.
  auto dtype_of = [&](const spec::ParameterSpec& info, const spec::ParameterPart& part) {
    if (!dtype_name.empty() || reader.is_quantized(part)) return dtype;
    const base::DType stored = reader.stored_dtype(info, part);
    return stored == base::DType::f64 ? base::DType::f32 : stored;
  };
  const nlohmann::json config = spec::make_hf_config(reader.spec(), hf_dtype_name(dtype));
  base::create_folders(out);
  io::TensorFolderWriter writer(out);
  Progress progress;
  for (const spec::ParameterSpec& info : table) {
    for (const spec::ParameterPart& part : info.parts) {
      writer.declare(part.hf_name, dtype_of(info, part), models::part_shape(info, part));
      ++progress.count;
    }
  }
  for (const spec::ParameterSpec& info : table) {
    for (const spec::ParameterPart& part : info.parts) {
      progress.tensor = part.hf_name;
      if (on_progress) on_progress(progress);
      ++progress.done;
      std::vector<float> values = reader.read(info, part);
      if (part.transposed) {
        const int64_t columns = info.shape[-1];
        std::vector<float> turned(values.size());
        for (int64_t r = 0; r < part.rows; ++r) {
          for (int64_t c = 0; c < columns; ++c)
            turned[static_cast<size_t>(c * part.rows + r)] = values[static_cast<size_t>(r * columns + c)];
        }
        values = std::move(turned);
      }
      const base::DType stored = dtype_of(info, part);
      std::vector<std::byte> bytes(values.size() * base::dtype_bytes(stored));
      base::convert_elements(base::DType::f32, values.data(), stored, bytes.data(), values.size());
      writer.write(part.hf_name, bytes);
    }
  }
  writer.commit();
  copy_tokenizer(reader, out);
  base::save_json(out + "/config.json", config);
}

}  // namespace sinter::quant
