#include "models/part_reader.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "models/gguf.h"
#include "models/open_model.h"
#include "models/weights.h"
#include "spec/families.h"

namespace sinter::models {

PartReader::PartReader(const std::string& model) : path_(model) {
  check_model_folder(model);
  if (io::is_gguf(model)) {
    gguf_ = std::make_unique<io::GgufFile>(model);
    spec_ = gguf_model_spec(*gguf_);
    gguf_tensors_apart(spec_, *gguf_);  // every tensor is there and fits
    return;
  }
  spec_ = load_model_spec(model);
  folder_ = std::make_unique<io::TensorFolder>(model);
  const std::string config = model + "/config.json";
  quantized_ = QuantizedFolder::open(base::load_json(config), config, *folder_);
}

std::vector<float> PartReader::read(const spec::ParameterSpec& info, const spec::ParameterPart& part) const {
  if (gguf_) return read_gguf_part(*gguf_, spec_, info, part);
  if (quantized_) {
    if (std::vector<float> values = quantized_->read_part(info, part); !values.empty()) return values;
  }
  return read_plain_part(info, part, *folder_);
}

bool PartReader::is_quantized(const spec::ParameterPart& part) const {
  if (gguf_) return gguf_->tensor(spec::gguf_place(part).name).format != core::WeightFormat::plain;
  return quantized_ && quantized_->holds(part);
}

base::DType PartReader::stored_dtype(const spec::ParameterSpec&, const spec::ParameterPart& part) const {
  if (is_quantized(part)) return base::DType::f32;
  if (gguf_) return gguf_->tensor(spec::gguf_place(part).name).dtype;
  return find_plain_part(part, *folder_).dtype;
}

}  // namespace sinter::models
