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

// Some windows of a calibration text, and their residual stream before the next block, (T, C) f32: as the rounded
// blocks before it give it, and as the original ones do.
struct CalibrationBatch {
  core::HostBatch host;
  core::Tensor stream, exact;
};
// Windows of so many tokens, each behind `prefix_token` (-1: none), some to a batch. The remainder is left out. Throws
// base::Error for a text without a whole window.
std::vector<CalibrationBatch> make_calibration(const std::vector<int32_t>& tokens, int64_t window,
                                               int32_t prefix_token);

// What a weight's products read, and how far their results are from where they should be.
struct WeightInputs {
  std::vector<Hessian> read;  // of every expert
  core::Tensor drift;         // (rows, K): sum over the rows x that are read of (result wanted - result) x^T; or empty
};

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
  // The same of one weight in a layer some weights of which are rounded, with its drift from `original`, the layer as
  // it was, on the exact stream. What a weight adds to the stream is wanted to make up for the stream's drift too.
  // Experts have no drift: the routers of both layers may choose differently.
  WeightInputs observe_beside(Layer& original, const std::vector<CalibrationBatch>& text, const Slot& slot);
  // Moves the text's stream to behind this layer; or the exact one.
  void advance(std::vector<CalibrationBatch>& text, core::Tensor CalibrationBatch::*stream);

 private:
  core::Tensor run(const kernels::KernelTable& kernels, const core::HostBatch& host, const core::Tensor& stream) const;
  // Runs a batch and gives what the product with a weight that is no expert's reads; `after`: the stream behind the
  // layer.
  core::Tensor rows_read(const Slot& slot, const core::HostBatch& host, const core::Tensor& stream,
                         core::Tensor& after);
  std::unique_ptr<models::ParameterStore> store_;
  std::unique_ptr<models::Transformer> transformer_;
};

}  // namespace sinter::quant
