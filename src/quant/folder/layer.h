// One block of a model alone in memory, as plain numbers that may be changed, and the stream of a text through it.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/host_batch.h"
#include "models/part_reader.h"
#include "models/transformer.h"
#include "quant/folder/hessian.h"

namespace sinter::quant {

// Some windows of a calibration text, and their residual stream before the next block, (T, C) f32.
struct CalibrationBatch {
  core::HostBatch host;
  core::Tensor stream;
};
// Windows of so many tokens, each behind `prefix_token` (-1: none), some to a batch. The remainder is left out. Throws
// base::Error for a text without a whole window.
std::vector<CalibrationBatch> make_calibration(const std::vector<int32_t>& tokens, int64_t window,
                                               int32_t prefix_token);

class Layer {
 public:
  using Slot = models::ParameterStore::Slot;

  // Reads the tensors of a layer; -1: the embeddings.
  Layer(const models::PartReader& reader, const std::vector<spec::ParameterSpec>& table, int64_t layer);

  std::vector<Slot>& slots() { return store_->slots(); }
  Slot* find(const std::string& ending);  // by the end of its name; null: there is none
  // The numbers of one piece of a tensor, as the parameter table has it.
  std::vector<float> read(const Slot& slot, const spec::ParameterPart& part) const;
  void write(Slot& slot, const spec::ParameterPart& part, const std::vector<float>& values);

  // What the products with these weights read, of every expert: one pass over the text.
  std::map<const Slot*, std::vector<Hessian>> observe(const std::vector<CalibrationBatch>& text,
                                                      const std::vector<const Slot*>& slots);
  // Moves the text's stream to behind this layer.
  void advance(std::vector<CalibrationBatch>& text);

 private:
  core::Tensor run(const kernels::KernelTable& kernels, const CalibrationBatch& batch) const;
  std::unique_ptr<models::ParameterStore> store_;
  std::unique_ptr<models::Transformer> transformer_;
};

}  // namespace sinter::quant
