#include "quant/folder/quantize_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"
#include "io/tensor_folder.h"
#include "models/weights.h"
#include "quant/folder/awq.h"
#include "quant/folder/layer.h"
#include "quant/folder/packing.h"
#include "spec/hf_config.h"

namespace sinter::quant {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using spec::ParameterPart;
using spec::ParameterRole;
using spec::ParameterSpec;

bool is_linear(const ParameterSpec& info, int64_t num_layers) {
  return (info.role == ParameterRole::matrix || info.role == ParameterRole::expert_matrix) && info.layer >= 0 &&
         info.layer < num_layers;
}

std::string module_of(const ParameterPart& part) {
  const std::string& name = part.hf_name;
  return name.ends_with(".weight") ? name.substr(0, name.size() - 7) : name;
}

// Whether the packed words hold whole rows and columns.
void check_shape(const FolderOptions& options, const ParameterSpec& info, const ParameterPart& part) {
  SINTER_CHECK(!part.transposed, "'{}' is stored transposed, for which folders have no quantized form; use a GGUF type",
               part.hf_name);
  if (options.method == FolderOptions::fp8) return;
  const int64_t rows = part.rows, columns = info.shape[-1], group = options.form.group;
  if (options.method == FolderOptions::awq) {
    SINTER_CHECK(rows % 8 == 0 && (group <= 0 || columns % group == 0),
                 "'{}' is {} x {}; AWQ needs rows by 8 and columns by the group of {}: choose --group {}, or gptq",
                 part.hf_name, rows, columns, group, std::gcd(columns, int64_t{128}));
    return;
  }
  const int64_t unit = options.form.bits == 3 ? 32 : 32 / options.form.bits;
  SINTER_CHECK(rows % unit == 0 && columns % unit == 0,
               "'{}' is {} x {}; GPTQ in {} bits needs multiples of {}: choose a GGUF type", part.hf_name, rows,
               columns, options.form.bits, unit);
}

json quantization_config(const FolderOptions& options) {
  const IntegerForm& form = options.form;
  const int64_t group = form.group <= 0 ? -1 : form.group;
  if (options.method == FolderOptions::gptq) {
    return {{"quant_method", "gptq"},
            {"bits", form.bits},
            {"group_size", group},
            {"sym", form.symmetric},
            {"desc_act", form.orders_groups},
            {"checkpoint_format", "gptq"},
            {"lm_head", false},
            {"damp_percent", options.damp},
            {"pack_dtype", "int32"}};
  }
  if (options.method == FolderOptions::awq) {
    return {{"quant_method", "awq"}, {"bits", form.bits}, {"group_size", group},  {"zero_point", !form.symmetric},
            {"version", "gemm"},     {"lm_head", false},  {"pack_dtype", "int32"}};
  }
  if (options.fp8_block > 0) {
    return {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"weight_block_size", {options.fp8_block, options.fp8_block}},
            {"activation_scheme", "dynamic"},
            {"modules_to_not_convert", {"lm_head"}}};
  }
  const json weights{
      {"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", "channel"}, {"dynamic", false}};
  const json inputs{{"num_bits", 8}, {"type", "float"}, {"symmetric", true}, {"strategy", "token"}, {"dynamic", true}};
  return {
      {"quant_method", "compressed-tensors"},
      {"format", "float-quantized"},
      {"quantization_status", "compressed"},
      {"ignore", {"lm_head"}},
      {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", inputs}}}}}};
}

const std::pair<std::string, core::Tensor CalibrationBatch::*> kStreams[] = {{"", &CalibrationBatch::stream},
                                                                             {"exact.", &CalibrationBatch::exact}};

// One run: OUT.part holds run.json (what it was begun with), layer-N.safetensors of the layers that are done, and
// stream.safetensors, the text's stream before layer N.
class Run {
 public:
  Run(const std::string& model, const std::string& out, const FolderOptions& options, const OnQuantized& on_progress)
      : reader_(model),
        table_(spec::make_parameter_table(reader_.spec())),
        out_(out),
        part_(out + ".part"),
        options_(options),
        on_progress_(on_progress),
        dtype_(choose_dtype()) {
    for (const ParameterSpec& info : table_) {
      if (!is_linear(info, num_layers())) continue;
      for (const ParameterPart& part : info.parts) check_shape(options_, info, part), ++progress_.count;
    }
    SINTER_CHECK(progress_.count > 0, "'{}' has no linear layers to quantize", model);
  }

  void run() {
    int64_t first = 0;
    std::vector<CalibrationBatch> text = begin(first);
    for (int64_t layer = first; layer < num_layers(); ++layer) {
      quantize_layer(layer, text);
      if (!text.empty() && layer + 1 < num_layers()) save_stream(layer + 1, text);
    }
    write_folder_of_layers();
  }

 private:
  int64_t num_layers() const { return reader_.spec().num_layers; }
  bool needs_text() const { return options_.method != FolderOptions::fp8; }
  std::string layer_file(int64_t layer) const { return fmt::format("{}/layer-{:05}.safetensors", part_, layer); }
  std::string stream_file() const { return part_ + "/stream.safetensors"; }

  // Of what stays plain. GPTQ's and AWQ's readers compute in f16.
  base::DType choose_dtype() const {
    if (needs_text()) return base::DType::f16;
    const base::DType stored = reader_.stored_dtype(table_[0], table_[0].parts[0]);
    return stored == base::DType::f16 ? stored : base::DType::bf16;
  }

  json fingerprint() const {
    uint64_t hash = 0;
    for (int32_t token : options_.tokens) hash = base::mix_bits(hash, static_cast<uint64_t>(token));
    return {{"model", fs::weakly_canonical(reader_.path()).string()},
            {"config", spec::make_hf_config(reader_.spec(), "float32")},
            {"quantization", quantization_config(options_)},
            {"text", {options_.tokens.size(), hash, options_.prefix_token, options_.window}}};
  }

  // The text before the first layer that is still to do.
  std::vector<CalibrationBatch> begin(int64_t& first) {
    const std::string mark = part_ + "/run.json";
    const bool is_ours = fs::exists(mark);
    SINTER_CHECK(is_ours || !fs::exists(part_), "'{}' is there and no unfinished run of `sinter quantize`; remove it",
                 part_);
    const bool goes_on = is_ours && base::load_json(mark) == fingerprint();
    if (!goes_on) {
      fs::remove_all(part_);
      base::create_folders(part_);
      base::save_json(mark, fingerprint());
    }
    std::vector<CalibrationBatch> text;
    if (needs_text()) {
      const int64_t window = std::min<int64_t>(options_.window, reader_.spec().max_positions - 1);
      text = make_calibration(options_.tokens, std::min<int64_t>(window, std::ssize(options_.tokens)),
                              options_.prefix_token);
    }
    if (goes_on && (needs_text() ? load_stream(first, text) : skip_done(first))) {
      base::log_info("going on with '{}': {} of {} layers are there", part_, first, num_layers());
    } else if (needs_text()) {
      Layer(reader_, table_, -1).advance(text, &CalibrationBatch::stream);
      for (CalibrationBatch& batch : text) batch.exact = batch.stream;
    }
    for (const ParameterSpec& info : table_) {
      if (is_linear(info, first)) progress_.done += info.parts.size();
    }
    return text;
  }

  bool skip_done(int64_t& first) const {
    while (first < num_layers() && fs::exists(layer_file(first))) ++first;
    return first > 0;
  }

  bool load_stream(int64_t& first, std::vector<CalibrationBatch>& text) const {
    if (!fs::exists(stream_file())) return false;
    const io::SafetensorsFile file(stream_file());
    first = std::stoll(file.metadata().at("layer"));
    for (size_t i = 0; i < text.size(); ++i) {
      for (const auto& [name, member] : kStreams) {
        const io::TensorEntry* entry = file.find(name + std::to_string(i));
        SINTER_CHECK(entry, "'{}' lacks window {}; remove '{}' to begin anew", stream_file(), i, part_);
        std::vector<float> values(static_cast<size_t>(entry->num_elements()));
        std::memcpy(values.data(), entry->bytes.data(), entry->bytes.size());
        text[i].*member = core::make_tensor(core::runtime({}).allocator(), {entry->shape[0], entry->shape[1]}, values);
      }
    }
    return true;
  }

  void save_stream(int64_t layer, const std::vector<CalibrationBatch>& text) const {
    io::SafetensorsWriter writer(stream_file(), {{"layer", std::to_string(layer)}});
    for (const auto& [name, member] : kStreams) {
      for (size_t i = 0; i < text.size(); ++i) {
        const core::Tensor& stream = text[i].*member;
        writer.declare(name + std::to_string(i), base::DType::f32, {stream.size(0), stream.size(1)});
      }
    }
    for (const auto& [name, member] : kStreams) {
      for (size_t i = 0; i < text.size(); ++i) {
        const core::Tensor& stream = text[i].*member;
        writer.write(name + std::to_string(i), {static_cast<const std::byte*>(stream.raw()), stream.bytes()});
      }
    }
    writer.commit();
  }

  void report(const std::string& tensor) {
    progress_.tensor = tensor;
    if (on_progress_) on_progress_(progress_);
    ++progress_.done;
  }

  // One piece of a weight: its packed tensors, and the layer then holds what they stand for.
  void quantize_part(Layer& layer, Layer::Slot& slot, const ParameterPart& part, const RoundingInputs* inputs,
                     const core::Tensor& drift, std::vector<PackedTensor>& packed) {
    report(part.hf_name);
    std::vector<float> values = layer.read(slot, part);
    const int64_t columns = slot.info.shape[-1];
    if (drift) make_up(values, *inputs, drift.slice(part.row_begin, part.rows));
    std::vector<PackedTensor> tensors;
    if (!inputs) {
      tensors = pack_fp8(module_of(part), values, part.rows, columns, options_.fp8_block);
    } else {
      const IntegerWeight weight = round_weight(values, part.rows, *inputs, options_.form);
      for (int64_t i = 0; i < part.rows * columns; ++i)
        values[static_cast<size_t>(i)] = weight.number(i / columns, i % columns);
      tensors = options_.method == FolderOptions::awq ? pack_awq(module_of(part), weight)
                                                      : pack_gptq(module_of(part), weight, options_.form.bits);
    }
    layer.write(slot, part, values);
    std::move(tensors.begin(), tensors.end(), std::back_inserter(packed));
  }

  void quantize_slot(Layer& layer, Layer::Slot& slot, const WeightInputs& inputs, std::vector<PackedTensor>& packed) {
    size_t rooted = SIZE_MAX;
    std::optional<RoundingInputs> prepared;
    for (const ParameterPart& part : slot.info.parts) {
      const auto e = static_cast<size_t>(std::max<int64_t>(0, part.expert));
      if (!inputs.read.empty() && e != rooted) {
        prepared.emplace(inputs.read[e], options_.damp);
        rooted = e;
      }
      quantize_part(layer, slot, part, prepared ? &*prepared : nullptr, inputs.drift, packed);
    }
  }

  void quantize_layer(int64_t number, std::vector<CalibrationBatch>& text) {
    Layer layer(reader_, table_, number);
    std::vector<Layer::Slot*> linear;
    for (Layer::Slot& slot : layer.slots()) {
      if (is_linear(slot.info, num_layers())) linear.push_back(&slot);
    }
    std::vector<PackedTensor> packed;
    std::optional<Layer> original;
    if (needs_text()) original.emplace(reader_, table_, number);
    if (options_.method == FolderOptions::awq) {
      auto inputs = layer.observe(text, {linear.begin(), linear.end()});
      scale_for_rounding(layer, reader_.spec(), options_.form, inputs);
    }
    // Each weight is rounded for the inputs that the rounded ones before it give.
    for (Layer::Slot* slot : linear)
      quantize_slot(layer, *slot, original ? layer.observe_beside(*original, text, *slot) : WeightInputs(), packed);
    for (const Layer::Slot& slot : layer.slots()) {
      if (is_linear(slot.info, num_layers())) continue;
      for (const ParameterPart& part : slot.info.parts) pack_part(slot.info, part, layer.read(slot, part), packed);
    }
    io::SafetensorsWriter writer(layer_file(number));
    for (const PackedTensor& t : packed) writer.declare(t.name, t.dtype, t.shape);
    for (const PackedTensor& t : packed) writer.write(t.name, t.bytes);
    writer.commit();
    if (text.empty() || number + 1 == num_layers()) return;
    layer.advance(text, &CalibrationBatch::stream);
    original->advance(text, &CalibrationBatch::exact);
  }

  void pack_part(const ParameterSpec& info, const ParameterPart& part, const std::vector<float>& values,
                 std::vector<PackedTensor>& packed) const {
    packed.push_back(pack_plain(part.hf_name, dtype_, models::part_shape(info, part), values));
  }

  void write_folder_of_layers() {
    const std::string folder = part_ + "/model";
    fs::remove_all(folder);
    base::create_folders(folder);
    io::TensorFolderWriter writer(folder);
    std::vector<io::SafetensorsFile> layers;
    for (int64_t layer = 0; layer < num_layers(); ++layer) layers.emplace_back(layer_file(layer));
    auto outside = [&](const ParameterSpec& info) { return info.layer < 0 || info.layer >= num_layers(); };
    for (const ParameterSpec& info : table_) {
      for (const ParameterPart& part : info.parts) {
        if (outside(info)) writer.declare(part.hf_name, dtype_, models::part_shape(info, part));
      }
    }
    for (const io::SafetensorsFile& file : layers) {
      for (const io::TensorEntry& entry : file.entries()) writer.declare(entry.name, entry.dtype, entry.shape);
    }
    for (const ParameterSpec& info : table_) {
      for (const ParameterPart& part : info.parts) {
        if (!outside(info)) continue;
        std::vector<PackedTensor> packed;
        pack_part(info, part, reader_.read(info, part), packed);
        writer.write(part.hf_name, packed[0].bytes);
      }
    }
    for (const io::SafetensorsFile& file : layers) {
      for (const io::TensorEntry& entry : file.entries()) writer.write(entry.name, entry.bytes);
    }
    writer.commit();
    copy_tokenizer(reader_, folder);
    json config = spec::make_hf_config(reader_.spec(), dtype_ == base::DType::f16 ? "float16" : "bfloat16");
    config["quantization_config"] = quantization_config(options_);
    base::save_json(folder + "/config.json", config);
    if (needs_text()) base::save_json(folder + "/quantize_config.json", config["quantization_config"]);
    fs::remove_all(out_);
    fs::rename(folder, out_);
    fs::remove_all(part_);
  }

  const models::PartReader reader_;
  const std::vector<ParameterSpec> table_;
  const std::string out_, part_;
  const FolderOptions& options_;
  const OnQuantized& on_progress_;
  const base::DType dtype_;
  Progress progress_;
};

}  // namespace

void write_quantized_folder(const std::string& model, const std::string& out, const FolderOptions& options,
                            const OnQuantized& on_progress) {
  Run(model, out, options, on_progress).run();
}

}  // namespace sinter::quant
