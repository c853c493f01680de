// Time of a training step from first principles: a roofline for every product, bytes for everything else, alpha-beta
// collectives, what overlaps with what, and the pipeline's bubble. The constants of a device are in Efficiency.
#pragma once
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "plan/collectives.h"
#include "plan/hardware.h"
#include "plan/model_shape.h"
#include "plan/software.h"
#include "spec/parallel_spec.h"

namespace sinter::plan {

// What a device reaches of its peaks in training, fitted to measurements (see efficiency.cc for which).
struct Efficiency {
  double gemm = 0.75;          // share of the dense peak, large products
  double gemm_narrow = 0.6;    // the same for fp8 and narrower formats, against their own peak
  double expert = 0.7;         // of those shares that experts' grouped products reach
  double gemm_start = 6e-6;    // seconds a product takes beside its FLOPs: ramp, tail wave, launch gap
  double attention = 0.45;     // share of the 16-bit peak of fused attention, forward; its backward gets 0.75 of it
  double memory = 0.8;         // share of the memory bandwidth in element-wise work
  double kernel = 4e-6;        // seconds any other kernel takes beside its bytes
  double host_block = 0;       // seconds the host needs to launch one block's forward pass
  double host_collective = 0;  // and for each collective in it
  double rank_stall = 0;       // seconds per collective and rank of its group, in a pipeline (see tensor_stall())
  double far_stall = 0;        // the same for tensor-parallel groups over several nodes
  double message_delay = 0;    // seconds per micro-batch and neighbour in the pipeline, on `delay_nodes` and more
  int64_t delay_nodes = 0;     // 0 = never
  int64_t deep_nodes = 0;      // the same with ZeRO and more than two stages; 0 = as `delay_nodes`
  int64_t drift_passes = 0;    // nodes times micro-batches from which hosts run apart without a pipeline; 0 = never
  // Machines measured on the spot tell these apart; 0 = as said.
  double gemm_memory = 0;   // share of the bandwidth at which operands pass, added to FLOPs; 0 = the roofline's maximum
  double gemm_weights = 0;  // the same for the matrix itself; 0 = free
  double attention_memory = 0;  // the same for attention's operands; 0 = free
  double loss_memory = 0;       // share of the bandwidth in the loss; 0 = `memory`
  double optimizer_memory = 0;  // and in the update; 0 = `memory`
  double step_fixed = 0;        // seconds per step that depend on nothing: data, logging, clipping's synchronisation
  double hidden_share = 0.9;    // of the last backward pass under which gradients travel
  double never_hidden = 0.1;    // of the traffic: the first and last bucket, and what it takes from the products
  LinkEfficiency links;
};

struct StepTime {
  // By cause, in seconds of the busiest device; the sum is the step.
  double matmul = 0, attention = 0, elementwise = 0;
  double loss = 0;  // over the vocabulary
  double recompute = 0;
  double host = 0;  // the device waits for launches
  double tensor_parallel = 0, context_parallel = 0, expert_parallel = 0;
  double pipeline_transfer = 0, bubble = 0;
  double data_parallel = 0;  // gradient and weight traffic that is not hidden
  double optimizer = 0, offload = 0, fixed = 0;

  double total() const;
};
inline constexpr size_t kNumTimeParts = 15;
inline constexpr std::array<std::string_view, kNumTimeParts> kTimePartNames{"matmul",
                                                                            "attention",
                                                                            "element-wise",
                                                                            "loss",
                                                                            "recompute",
                                                                            "host",
                                                                            "tensor parallel",
                                                                            "context parallel",
                                                                            "expert parallel",
                                                                            "pipeline transfer",
                                                                            "bubble",
                                                                            "data parallel",
                                                                            "optimizer",
                                                                            "offload",
                                                                            "fixed"};
std::array<double, kNumTimeParts> part_values(const StepTime& time);

struct StepEstimate {
  StepTime time;
  double seconds = 0;
  double tokens_per_second = 0;
  double model_flops = 0;     // of the whole step: 6 per matmul parameter and token, attention with causal halving
  double hardware_flops = 0;  // with what is computed again
  double mfu = 0, hfu = 0;    // against the dense peak of the format products run in
};

// What one micro-batch costs one device in one chunk of the pipeline. The simulator's durations.
struct ChunkTime {
  double forward = 0, backward = 0;  // everything that stands in line on the compute stream
  StepTime parts;                    // forward and backward together
};

class TimeModel {
 public:
  TimeModel(const ModelShape& model, const spec::ParallelSpec& parallel, const Cluster& cluster,
            const Software& software, const Efficiency& efficiency, MatrixFormat format = MatrixFormat::bf16);

  StepEstimate plan() const;
  // Layers [begin, begin + count) with the embedding or head where they belong.
  ChunkTime chunk(int64_t virtual_stage) const;
  // One block, as a profiler would see it.
  struct LayerTime {
    double forward = 0, backward = 0;
  };
  LayerTime layer(int64_t index) const;
  // One transfer between neighbouring pipeline ranks.
  double transfer() const;
  // After the last backward: gradient traffic that is not hidden, optimizer, offload, fixed costs.
  StepTime tail(double last_backward) const;

  double model_flops() const;
  double hardware_flops() const;
  // That norms, residuals, rotation and activation of a block move in the forward pass of one micro-batch.
  double elementwise_bytes(const BlockShape& block) const;

 private:
  struct Pass {
    double matmul = 0, attention = 0, elementwise = 0, host = 0;
    double tensor_parallel = 0, context_parallel = 0, expert_parallel = 0;
    double busy() const { return matmul + attention + elementwise; }
    double total() const { return busy() + host + tensor_parallel + context_parallel + expert_parallel; }
  };
  struct BlockTime {
    Pass forward, backward, again;  // `again`: what recompute adds to the backward
    double weight_traffic = 0;      // ZeRO-3: gathering the block once
    double gradient_traffic = 0;    // ZeRO-3: reduce-scatter of its gradients
  };
  BlockTime make_block(const BlockShape& block) const;
  Pass block_forward(const BlockShape& block) const;
  Pass block_backward(const BlockShape& block, const Pass& forward) const;
  void add_block_traffic(const BlockShape& block, BlockTime& time) const;
  double matmul_time(const Matmul& m, double tokens, bool is_weight_gradient) const;
  double attention_time(const BlockShape& block) const;
  // Measured machines have the bytes of attention's operands in place of a start.
  double attention_start() const { return efficiency_.attention_memory > 0 ? 0 : efficiency_.gemm_start; }
  void add_head(ChunkTime& chunk) const;
  void add_sharding(const BlockTime& block, double layers, ChunkTime& chunk) const;
  bool trains_weights() const { return !software_.freezes_weights; }
  double data_parallel_tail(double last_backward) const;
  void add_host(int collectives, Pass& pass) const;
  bool is_far() const;
  double tensor_stall() const;
  double data_stall() const;
  double message_delay() const;
  double wire_bytes() const;     // of one gradient between ranks
  double state_traffic() const;  // optimizer's bytes

  const ModelShape& model_;
  const spec::ParallelSpec& p_;
  const Cluster& cluster_;
  const Software& software_;
  const Efficiency& efficiency_;
  MatrixFormat format_;
  Collectives collectives_;
  double tokens_;                  // of one micro-batch on one device
  double element_;                 // bytes of an activation
  double peak_;                    // of the 16-bit format
  double gemm_rate_;               // reached by large products
  std::vector<BlockTime> blocks_;  // one per kind
};

StepEstimate plan_step(const ModelShape& model, const spec::ParallelSpec& parallel, const Cluster& cluster,
                       const Software& software, const Efficiency& efficiency,
                       MatrixFormat format = MatrixFormat::bf16);

// The fitted constants of a device and program; those `plan --measure` saved where there are any; defaults where
// nothing was measured.
Efficiency find_efficiency(const DeviceSpec& device, const std::string& software,
                           MatrixFormat format = MatrixFormat::bf16);
// Where they come from, in words: measured, fitted to which rows, borrowed from another device, or guessed.
std::string efficiency_source(const DeviceSpec& device, const std::string& software, MatrixFormat format);

}  // namespace sinter::plan
