// Single pieces of a model's stored tensors as plain numbers, from a folder (plain or quantized) or a GGUF file: what
// converting and quantizing read, so that no more than a tensor is in memory at a time.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "io/tensor_folder.h"
#include "models/quantized/quantized_folder.h"
#include "spec/model_spec.h"
#include "spec/parameters.h"

namespace sinter::models {

class PartReader {
 public:
  explicit PartReader(const std::string& model);
  const std::string& path() const { return path_; }
  const spec::ModelSpec& spec() const { return spec_; }
  // Null for a folder.
  const io::GgufFile* gguf() const { return gguf_.get(); }
  // (rows, columns) or (rows), as the parameter table has them.
  std::vector<float> read(const spec::ParameterSpec& info, const spec::ParameterPart& part) const;
  // How the file stores it: a plain format, or f32 for one that is quantized.
  base::DType stored_dtype(const spec::ParameterSpec& info, const spec::ParameterPart& part) const;
  bool is_quantized(const spec::ParameterPart& part) const;

 private:
  std::string path_;
  spec::ModelSpec spec_;
  std::unique_ptr<io::GgufFile> gguf_;
  std::unique_ptr<io::TensorFolder> folder_;
  std::unique_ptr<QuantizedFolder> quantized_;
};

}  // namespace sinter::models
