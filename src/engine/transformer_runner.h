// The engine's model: a transformer over a paged cache.
#pragma once
#include <memory>
#include <vector>

#include "core/device_batch.h"
#include "engine/step_model.h"
#include "models/transformer.h"

namespace sinter::engine {

class TransformerRunner : public StepModel {
 public:
  // The transformer must outlive it. With fixed_shapes batches are padded to few shapes, so that what was captured or
  // planned for one is used again; padding is computed too, and without it a step has just its tokens.
  TransformerRunner(const models::Transformer& transformer, bool fixed_shapes);

  const ModelLimits& limits() const override { return limits_; }
  int64_t bytes_per_block(int64_t block_size) const override;
  int64_t free_bytes() const override;
  void take_cache(int64_t num_blocks, int64_t block_size) override;
  void release_cache() override;
  void forward(const StepBatch& batch) override;
  std::span<const float> logits(int64_t first, int64_t count) override;
  int64_t max_rows() const override { return max_rows_; }
  void logprobs(std::span<const int32_t> targets, std::span<float> out) override;

 private:
  core::BatchShape shape_for(const StepBatch& batch) const;

  const models::Transformer& transformer_;
  core::DeviceRuntime& device_;
  bool fixed_shapes_;
  ModelLimits limits_;
  int64_t max_rows_ = 0;
  core::KvCache cache_;
  std::unique_ptr<core::DeviceBatch> batch_;
  core::Tensor hidden_;  // (rows, C) of the last forward
  core::Tensor logits_;  // (count, V) of the last logits()
  std::vector<float> host_logits_;
};

}  // namespace sinter::engine
