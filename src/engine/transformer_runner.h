// The engine's model: a transformer over a paged cache.
//
// On the CPU steps take their memory from what earlier ones left. On a GPU they are padded to few shapes. Each shape
// has its plan of one arena, and where it is decoding its CUDA graph, made when the shape first comes and kept: such a
// step is one copy to the device, one launch, and one small copy back of the tokens that were chosen there. They also
// stay on the device, where the next step takes them from: it may be enqueued before they have come back.
#pragma once
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/arena.h"
#include "core/device_batch.h"
#include "core/graph.h"
#include "core/recycling.h"
#include "engine/step_model.h"
#include "kernels/kept_choices.h"
#include "models/transformer.h"

namespace sinter::engine {

struct RunnerOptions {
  bool fixed_shapes = false;                 // pad steps to few shapes; on a GPU always
  bool graphs = true;                        // on a GPU
  bool chooses = false;                      // choose tokens by the sampling kernel; on a GPU always
  bool keeps_choices = false;                // of kernels, in a file (kernels/kept_choices.h)
  core::DType kv_format = core::DType::f32;  // of keys and values; f32: the compute format
  std::vector<int64_t> kv_plain_layers;      // whose keys and values have the compute format in any case
};

class TransformerRunner : public StepModel {
 public:
  // The transformer must outlive it.
  explicit TransformerRunner(const models::Transformer& transformer, const RunnerOptions& options = {});
  ~TransformerRunner() override;

  const ModelLimits& limits() const override { return limits_; }
  int64_t bytes_per_block(int64_t block_size) const override;
  double weight_bytes(int64_t tokens, int64_t rows) const override;
  int64_t free_bytes() const override;
  void take_cache(int64_t num_blocks, int64_t block_size) override;
  void release_cache() override;
  void forward(const StepBatch& batch) override;
  bool chooses() const override { return is_gpu_ || options_.chooses; }
  Chosen chosen() override;
  std::span<const float> logits(int64_t first, int64_t count) override;
  std::vector<float> hidden_state(int64_t row) override;
  int64_t max_rows() const override { return max_rows_; }
  void logprobs(std::span<const int32_t> targets, std::span<float> out) override;

 private:
  void count_weights();
  // What a step's work depends on.
  struct Kind {
    int64_t tokens, sequences, table_width, rows, max_query, vocab_limit;
    bool chooses, has_masks, has_edits, wants_logprobs;
    auto operator<=>(const Kind&) const = default;
  };
  struct Step;
  Kind kind_of(const StepBatch& batch) const;
  core::BatchShape shape_of(const Kind& kind) const;
  core::KvCacheShape cache_shape(int64_t num_blocks, int64_t block_size) const;
  void make_room(const core::BatchShape& shape, const StepBatch& batch);
  Step& step_for(const Kind& kind, const core::RaggedBatch& batch);
  void compute(Step& step, const ops::Context& context, const core::RaggedBatch& batch) const;
  void send_choices(const StepBatch& batch);
  // Where the tokens of a step arrive on the host, and what is with them.
  struct Arrival {
    std::shared_ptr<std::byte[]> staging;  // tokens, ranks and log-probabilities, each of `room` rows
    int64_t room = 0, rows = 0;
    bool has_logprobs = false;
    std::unique_ptr<core::Event> event;
  };
  void make_room_for_chosen(int64_t rows);
  void feed(const StepBatch& batch);
  void fetch_chosen(const Step& step, int64_t rows);
  void forget_steps();
  // For work outside of planned arenas.
  core::Allocator& scratch();
  ops::Context context();

  const models::Transformer& transformer_;
  core::DeviceRuntime& device_;
  RunnerOptions options_;
  bool is_gpu_;
  ModelLimits limits_;
  int64_t max_rows_ = 0;
  double dense_bytes_ = 0, head_bytes_ = 0, row_bytes_ = 0, expert_bytes_ = 0;  // row: of the embedding
  core::KvCache cache_;
  core::RecyclingAllocator memory_;  // on the CPU; outlives the tensors below
  std::unique_ptr<core::DeviceBatch> batch_;
  core::Tensor edits_, masks_;  // room on the device, u8 and i32
  std::unique_ptr<core::ArenaSet> arenas_;
  std::map<Kind, std::unique_ptr<Step>> steps_;
  std::optional<kernels::KeptChoices> kept_choices_;
  std::chrono::steady_clock::time_point last_save_;
  Step* last_ = nullptr;
  core::Tensor fed_;     // (rows) i32: what the last step that chose has chosen
  Arrival arrivals_[2];  // of the steps that chosen() was not called for yet: num_awaited_ of them
  int64_t first_awaited_ = 0, num_awaited_ = 0;
  core::Tensor logits_;  // (count, V) of the last logits()
  std::vector<float> host_logits_;
};

}  // namespace sinter::engine
