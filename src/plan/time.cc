#include "plan/time.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plan/memory.h"
#include "spec/schedule.h"

namespace sinter::plan {
namespace {

double as_double(int64_t n) { return static_cast<double>(n); }
double bytes_of(base::DType dtype) { return static_cast<double>(base::dtype_bytes(dtype)); }

bool is_narrow(MatrixFormat format) {
  return format == MatrixFormat::fp8 || format == MatrixFormat::fp6 || format == MatrixFormat::fp4 ||
         format == MatrixFormat::int8 || format == MatrixFormat::int4;
}

// Of the forward's FLOPs: attention's backward computes five products where the forward has two, and its kernels reach
// a smaller share of the peak.
constexpr double kAttentionBackward = 2.5 / 0.75;
// Passes over the scores by unfused attention, bytes per score: written, softmax, dropout with its mask, read.
constexpr double kScoreBytesForward = 13, kScoreBytesBackward = 20;

// Keys a query is scored against, on average over a sequence.
double mean_keys(int64_t seq_len, int64_t window, bool halves) {
  double s = as_double(seq_len);
  if (window > 0 && window < seq_len) return as_double(window);
  return halves ? s / 2 : s;
}

}  // namespace

double StepTime::total() const {
  double sum = 0;
  for (double part : part_values(*this)) sum += part;
  return sum;
}

std::array<double, kNumTimeParts> part_values(const StepTime& t) {
  return {t.matmul,
          t.attention,
          t.elementwise,
          t.loss,
          t.recompute,
          t.host,
          t.tensor_parallel,
          t.context_parallel,
          t.expert_parallel,
          t.pipeline_transfer,
          t.bubble,
          t.data_parallel,
          t.optimizer,
          t.offload,
          t.fixed};
}

TimeModel::TimeModel(const ModelShape& model, const spec::ParallelSpec& parallel, const Cluster& cluster,
                     const Software& software, const Efficiency& efficiency, MatrixFormat format)
    : model_(model),
      p_(parallel),
      cluster_(cluster),
      software_(software),
      efficiency_(efficiency),
      format_(format),
      collectives_(cluster, efficiency.links, software.single_rail) {
  tokens_ = as_double(p_.micro_batch * p_.seq_len) / as_double(p_.cp);
  element_ = bytes_of(p_.compute);
  MatrixFormat wide = is_narrow(format) ? MatrixFormat::bf16 : format;
  peak_ = cluster.device.compute_rate(wide);
  gemm_rate_ =
      is_narrow(format) ? cluster.device.compute_rate(format) * efficiency.gemm_narrow : peak_ * efficiency.gemm;
  for (const BlockShape& block : model_.kinds) blocks_.push_back(make_block(block));
}

double TimeModel::matmul_time(const Matmul& m, double tokens, bool is_weight_gradient) const {
  double k = as_double(m.inputs), n = as_double(m.outputs), weights = k * n, pieces = 1;
  double cut = as_double(m.is_expert ? expert_tp(p_) : p_.tp);
  if (m.is_expert) {
    // Every device holds experts / ep of them and gets its share of everybody's tokens.
    tokens *= as_double(model_.experts_per_token) / (expert_tp(p_) == 1 ? as_double(p_.tp) : 1.0);
    pieces = std::max(1.0, as_double(model_.num_experts) / as_double(p_.ep));
    weights *= pieces;
  }
  if (m.cut == Matmul::Cut::outputs) n /= cut;
  if (m.cut == Matmul::Cut::inputs) k /= cut;
  if (m.cut != Matmul::Cut::none) weights /= cut;
  double flops = 2 * tokens * k * n, rows = element_ * tokens * (k + n), matrix = element_ * weights;
  if (is_weight_gradient) matrix = 2 * bytes_of(p_.main_gradients) * weights;  // summed in place
  double rate = gemm_rate_ * (m.is_expert ? efficiency_.expert : 1.0), bandwidth = cluster_.device.bandwidth;
  double time = std::max(flops / rate, (rows + matrix) / (bandwidth * efficiency_.memory));
  if (efficiency_.gemm_memory > 0) {
    time = flops / rate + rows / (bandwidth * efficiency_.gemm_memory);
    if (efficiency_.gemm_weights > 0) time += matrix / (bandwidth * efficiency_.gemm_weights);
  }
  if (is_narrow(format_)) time += 4 * tokens * k / (cluster_.device.bandwidth * efficiency_.memory);  // cast, transpose
  return time + efficiency_.gemm_start;
}

double TimeModel::attention_time(const BlockShape& block) const {
  bool flash = software_.flash_attention;
  double keys = mean_keys(p_.seq_len, block.window, flash);
  double flops = 2 * tokens_ * keys * as_double(model_.qk_width() + model_.v_width()) / as_double(p_.tp);
  if (flash) {
    double time = flops / (peak_ * efficiency_.attention * software_.attention_scale) + attention_start();
    if (efficiency_.attention_memory == 0) return time;
    double elements =
        tokens_ * as_double(model_.qk_width() + 2 * model_.kv_width + model_.v_width()) / as_double(p_.tp);
    return time + element_ * elements / (cluster_.device.bandwidth * efficiency_.attention_memory);
  }
  double scores = tokens_ * as_double(p_.seq_len) * as_double(model_.num_heads) / as_double(p_.tp);
  return flops / (peak_ * efficiency_.gemm) +
         kScoreBytesForward * scores / (cluster_.device.bandwidth * efficiency_.memory) + 2 * efficiency_.gemm_start +
         3 * efficiency_.kernel;
}

double TimeModel::elementwise_bytes(const BlockShape& block) const {
  double tp = as_double(p_.tp), outside = p_.sequence_parallel ? tp : 1.0;
  double mask = model_.has_dropout ? 2.0 : 0.0;
  double h = as_double(model_.hidden);
  // Two norms read and write; two residual sums read two and write one.
  double bytes = tokens_ * h * (10 * element_ + mask) / outside;
  if (model_.has_rope) bytes += 2 * element_ * tokens_ * as_double(model_.qk_width() + model_.kv_width) / tp;
  double widened = model_.gated_mlp ? 3 : 2;
  if (!block.is_sparse) return bytes + tokens_ * element_ * widened * as_double(model_.ffn) / tp;
  double copies = as_double(model_.experts_per_token) / (expert_tp(p_) == 1 ? tp : 1.0);
  bytes += tokens_ * copies * element_ * (widened * as_double(model_.moe_ffn) / as_double(expert_tp(p_)));
  bytes += tokens_ * copies * element_ * 4 * h;  // permute and unpermute read and write
  bytes += tokens_ * 16 * as_double(model_.num_experts);
  return bytes + tokens_ * element_ * widened * as_double(model_.shared_ffn) / tp;
}

TimeModel::Pass TimeModel::block_forward(const BlockShape& block) const {
  Pass pass;
  for (const Matmul& m : block.matmuls) pass.matmul += matmul_time(m, tokens_, false);
  pass.attention = attention_time(block);
  pass.elementwise =
      software_.elementwise_scale * elementwise_bytes(block) / (cluster_.device.bandwidth * efficiency_.memory) +
      (block.is_sparse ? 12 : 6) * efficiency_.kernel;
  double h = as_double(model_.hidden);
  int collectives = 0;
  if (p_.tp > 1) {
    double moe_shrinks = block.is_sparse && expert_tp(p_) == 1 ? 1 : 2;  // experts without tp need no second sum
    // A sum, or with sequence parallelism its two halves, which know rings alone.
    double one = p_.sequence_parallel ? 2 * collectives_.all_gather({p_.tp, 1}, element_ * tokens_ * h)
                                      : collectives_.all_reduce({p_.tp, 1}, element_ * tokens_ * h);
    pass.tensor_parallel = moe_shrinks * one * (software_.overlaps_tensor_parallel ? 0.5 : 1.0);
    collectives += 2;
  }
  if (p_.cp > 1) {  // keys and values travel round the ring under the attention of the previous piece
    double kv = 2 * element_ * tokens_ * as_double(model_.kv_width) / as_double(std::min(p_.tp, model_.num_kv_heads));
    double ring = collectives_.all_gather({p_.cp, p_.tp}, kv * as_double(p_.cp));
    pass.context_parallel = std::max(0.25 * ring, ring - pass.attention);
    collectives += static_cast<int>(p_.cp - 1);
  }
  if (block.is_sparse && p_.ep > 1) {
    double copies = as_double(model_.experts_per_token) / (expert_tp(p_) == 1 ? as_double(p_.tp) : 1.0);
    Group group{p_.ep, expert_tp(p_) == 1 ? 1 : p_.tp};
    double once =
        software_.sends_tokens_once ? collectives_.distinct_share(group, as_double(model_.experts_per_token)) : 1;
    pass.expert_parallel = 2 * collectives_.all_to_all(group, element_ * tokens_ * copies * h, once) *
                           (software_.overlaps_expert_parallel ? 0.5 : 1.0);
    collectives += 2;
  }
  add_host(collectives, pass);
  return pass;
}

// What the host's launches and its waiting in the block's collectives (four in a pass) leave uncovered.
void TimeModel::add_host(int collectives, Pass& pass) const {
  double wait = p_.tp > 1 ? 4 * tensor_stall() * as_double(p_.tp) : 0;
  double host = efficiency_.host_block + collectives * efficiency_.host_collective + wait;
  pass.host = std::max(0.0, host - pass.total());
}

bool TimeModel::is_far() const {
  return efficiency_.delay_nodes > 0 && cluster_.num_nodes() >= efficiency_.delay_nodes;
}

// Seconds per rank of its group that a host waits in a collective: where a pipeline's blocking receives (or very many
// passes) drive the hosts apart, and where inputs are gathered again over several nodes, or over a whole one among very
// many.
double TimeModel::tensor_stall() const {
  bool drifts = efficiency_.drift_passes > 0 && cluster_.num_nodes() * p_.micro_batches() >= efficiency_.drift_passes;
  double stall = p_.pp > 1 || (drifts && !software_.keeps_gathered) ? efficiency_.rank_stall : 0;
  bool wide = p_.tp > cluster_.per_node || (p_.pp == 1 && (drifts || (is_far() && p_.tp >= cluster_.per_node)));
  return wide && !software_.keeps_gathered ? std::max(stall, efficiency_.far_stall) : stall;
}

// The same among data-parallel ranks.
double TimeModel::data_stall() const {
  bool drifts = efficiency_.drift_passes > 0 && cluster_.num_nodes() * p_.micro_batches() >= efficiency_.drift_passes;
  if (p_.pp > 1) return efficiency_.rank_stall;
  if (software_.keeps_gathered) return 0;
  if (is_far() && p_.dp() >= cluster_.per_node) return efficiency_.far_stall;
  return drifts ? efficiency_.rank_stall : 0;
}

TimeModel::Pass TimeModel::block_backward(const BlockShape& block, const Pass& forward) const {
  Pass pass;
  for (const Matmul& m : block.matmuls) {
    pass.matmul += matmul_time(m, tokens_, false) + (trains_weights() ? matmul_time(m, tokens_, true) : 0);
  }
  if (software_.flash_attention) {
    pass.attention = (forward.attention - attention_start()) * kAttentionBackward + 2 * attention_start();
  } else {
    double scores = tokens_ * as_double(p_.seq_len) * as_double(model_.num_heads) / as_double(p_.tp);
    double rate = cluster_.device.bandwidth * efficiency_.memory;
    pass.attention = 2 * forward.attention + (kScoreBytesBackward - 2 * kScoreBytesForward) * scores / rate;
  }
  pass.elementwise = 2 * forward.elementwise;
  pass.tensor_parallel = forward.tensor_parallel;
  pass.context_parallel = 2 * forward.context_parallel;
  pass.expert_parallel = forward.expert_parallel;
  add_host(p_.tp > 1 ? 2 : 0, pass);
  return pass;
}

void TimeModel::add_block_traffic(const BlockShape& block, BlockTime& time) const {
  if (p_.zero < 3 || p_.shard <= 1) return;
  double parameters = as_double(block.cut_parameters) / as_double(p_.tp) + as_double(block.whole_parameters) +
                      as_double(block.expert_parameters) / as_double(p_.ep * expert_tp(p_));
  Group group{p_.shard * p_.cp, p_.tp};
  time.weight_traffic = collectives_.all_gather(group, parameters * element_);
  time.gradient_traffic = collectives_.reduce_scatter(group, parameters * wire_bytes());
}

TimeModel::BlockTime TimeModel::make_block(const BlockShape& block) const {
  BlockTime time;
  time.forward = block_forward(block);
  time.backward = block_backward(block, time.forward);
  if (p_.recompute == spec::Recompute::full) time.again = time.forward;
  if (p_.recompute == spec::Recompute::selective) {
    double share = software_.selective_matmul_share;
    time.again.matmul = share * time.forward.matmul;
    if (share > 0 || software_.selective_drops_norms) time.again.elementwise = 0.6 * time.forward.elementwise;
    if (!software_.flash_attention) time.again.attention = time.forward.attention;
  }
  add_block_traffic(block, time);
  return time;
}

void TimeModel::add_head(ChunkTime& chunk) const {
  Matmul head{model_.hidden, model_.vocab, Matmul::Cut::outputs, false};
  double heads = as_double(1 + model_.num_mtp);
  double forward = heads * matmul_time(head, tokens_, false);
  double backward =
      heads * (matmul_time(head, tokens_, false) + (trains_weights() ? matmul_time(head, tokens_, true) : 0));
  // Logits are read and written a few times in full precision: maximum, sum, probabilities, gradient.
  double logits = heads * tokens_ * as_double(model_.vocab) / as_double(p_.tp);
  double share = efficiency_.loss_memory > 0 ? efficiency_.loss_memory : efficiency_.memory;
  double loss = 20 * logits / (cluster_.device.bandwidth * share);
  chunk.forward += forward + 0.6 * loss;
  chunk.backward += backward + 0.4 * loss;
  chunk.parts.matmul += forward + backward;
  chunk.parts.loss += loss;
}

void TimeModel::add_sharding(const BlockTime& block, double layers, ChunkTime& chunk) const {
  if (block.weight_traffic == 0) return;
  double hide = software_.overlaps_data_parallel && software_.overlaps_sharded ? 1.0 : 0.0;
  auto exposed = [&](double traffic, double compute) {
    return std::max(efficiency_.never_hidden * traffic, traffic - hide * compute);
  };
  double forward = exposed(block.weight_traffic, block.forward.total());
  double backward =
      exposed(block.weight_traffic + block.gradient_traffic, block.backward.total() + block.again.total());
  chunk.forward += forward * layers;
  chunk.backward += backward * layers;
  chunk.parts.data_parallel += (forward + backward) * layers;
}

ChunkTime TimeModel::chunk(int64_t virtual_stage) const {
  int64_t stages = p_.pp * p_.interleave;
  spec::LayerRange range = stage_layers(model_, p_, software_, virtual_stage);
  std::vector<int64_t> count(blocks_.size(), 0);
  for (int64_t layer = range.begin; layer < range.begin + range.count; ++layer) {
    ++count[model_.kind_of_layer[static_cast<size_t>(layer)]];
  }
  if (virtual_stage == stages - 1) count[model_.kind_of_layer.back()] += model_.num_mtp;
  ChunkTime chunk;
  for (size_t kind = 0; kind < count.size(); ++kind) {
    double layers = as_double(count[kind]);
    const BlockTime& b = blocks_[kind];
    chunk.forward += layers * b.forward.total();
    chunk.backward += layers * (b.backward.total() + b.again.total());
    StepTime& parts = chunk.parts;
    parts.recompute += layers * b.again.total();
    parts.matmul += layers * (b.forward.matmul + b.backward.matmul);
    parts.attention += layers * (b.forward.attention + b.backward.attention);
    parts.elementwise += layers * (b.forward.elementwise + b.backward.elementwise);
    parts.host += layers * (b.forward.host + b.backward.host);
    parts.tensor_parallel += layers * (b.forward.tensor_parallel + b.backward.tensor_parallel);
    parts.context_parallel += layers * (b.forward.context_parallel + b.backward.context_parallel);
    parts.expert_parallel += layers * (b.forward.expert_parallel + b.backward.expert_parallel);
    if (count[kind] > 0) add_sharding(b, layers, chunk);
  }
  if (virtual_stage == stages - 1) add_head(chunk);
  return chunk;
}

TimeModel::LayerTime TimeModel::layer(int64_t index) const {
  const BlockTime& block = blocks_[model_.kind_of_layer[static_cast<size_t>(index)]];
  return {block.forward.total(), block.backward.total() + block.again.total()};
}

double TimeModel::transfer() const {
  if (p_.pp == 1) return 0;
  double bytes = element_ * tokens_ * as_double(model_.hidden) / (p_.sequence_parallel ? as_double(p_.tp) : 1.0);
  // Unless the whole pipeline is in one node, some border lies between nodes, and the slowest sets the pace.
  return collectives_.send(p_.tp * p_.cp * p_.dp() * p_.pp <= cluster_.per_node, bytes);
}

double TimeModel::wire_bytes() const {
  return software_.gradient_wire_bytes > 0 ? software_.gradient_wire_bytes : bytes_of(p_.main_gradients);
}

double TimeModel::data_parallel_tail(double last_backward) const {
  if (p_.dp() * p_.cp == 1 || !trains_weights()) return 0;
  StageParameters first = stage_parameters(model_, p_, 0, software_);
  double gradient = wire_bytes(), dense = first.dense, experts = first.experts;
  int64_t shards = p_.shard * p_.cp;
  Group everyone{p_.dp() * p_.cp, p_.tp}, inside{shards, p_.tp}, across{p_.replica, p_.tp * shards};
  Group expert_group{std::max<int64_t>(1, p_.dp() * p_.cp * p_.tp / (p_.ep * expert_tp(p_))), p_.tp * p_.ep};
  double reduce = 0, gather = 0;
  if (p_.zero == 0) {
    reduce = collectives_.all_reduce(everyone, dense * gradient);
    if (experts > 0) reduce += collectives_.all_reduce(expert_group, experts * gradient);
  } else {
    if (p_.zero == 1 && software_.zero_all_reduces) {
      reduce = collectives_.all_reduce(inside, dense * gradient);
      if (experts > 0) reduce += collectives_.all_reduce(expert_group, experts * gradient);
    } else if (p_.zero < 3) {
      reduce = collectives_.reduce_scatter(inside, dense * gradient);
      if (experts > 0) reduce += collectives_.reduce_scatter(expert_group, experts * gradient);
    }
    if (p_.zero < 3) {
      gather = collectives_.all_gather(inside, dense * element_);
      if (experts > 0) gather += collectives_.all_gather(expert_group, experts * element_);
    }
    reduce += collectives_.all_reduce(across, (dense + experts) * gradient / as_double(shards));
  }
  double pieces = p_.zero == 0 && software_.bucket_bytes > 0 ? dense * element_ / software_.bucket_bytes : 1.0;
  double wait = data_stall() * as_double(everyone.size);
  reduce += std::max(1.0, pieces) * wait;
  if (gather > 0) gather += wait;
  if (!software_.overlaps_data_parallel || (p_.zero > 0 && !software_.overlaps_sharded)) return reduce + gather;
  // What the last micro-batch's backward and the next step's first forward do not hide; ZeRO-2 keeps only
  // shards of the gradients, so every micro-batch's must travel.
  double hidden = efficiency_.hidden_share * last_backward, never = efficiency_.never_hidden;
  double rounds = p_.zero == 2 ? as_double(p_.micro_batches()) : 1.0;
  return rounds * std::max(never * reduce, reduce - hidden) + std::max(never * gather, gather - hidden / 2);
}

double TimeModel::state_traffic() const {
  if (!trains_weights()) return 0;
  StageParameters first = stage_parameters(model_, p_, 0, software_);
  double shards = p_.zero >= 1 ? as_double(dense_shards(p_)) : 1.0;
  double owned = first.dense / shards + first.experts / (p_.zero >= 1 ? as_double(expert_shards(p_)) : 1.0);
  double master = p_.master == p_.compute ? 0.0 : bytes_of(p_.master);
  // The norm reads gradients once; the update reads them again, reads and writes master and moments, writes weights.
  double per_parameter =
      2 * bytes_of(p_.main_gradients) + 2 * master + 2 * p_.num_moments * bytes_of(p_.moments) + element_;
  return owned * per_parameter;
}

StepTime TimeModel::tail(double last_backward) const {
  StepTime tail;
  tail.data_parallel = data_parallel_tail(last_backward);
  double state = state_traffic();
  if (p_.offload.optimizer) {
    tail.offload = state / std::max(1.0, cluster_.device.pcie_bandwidth * 0.8);
  } else {
    double share = efficiency_.optimizer_memory > 0 ? efficiency_.optimizer_memory : efficiency_.memory;
    tail.optimizer = state / (cluster_.device.bandwidth * share);
  }
  tail.fixed = efficiency_.step_fixed;
  return tail;
}

double TimeModel::model_flops() const {
  double sequences = as_double(p_.global_batch), s = as_double(p_.seq_len);
  double attention = 0;
  for (int64_t layer = 0; layer < model_.num_layers; ++layer) {
    double keys = mean_keys(p_.seq_len, model_.block(layer).window, true);
    attention += 2 * keys * as_double(model_.qk_width() + model_.v_width());
  }
  return sequences * s * 3 * (2 * as_double(model_.matmul_parameters()) + attention);
}

double TimeModel::hardware_flops() const {
  double model = model_flops();
  double head =
      6 * as_double(model_.hidden * model_.vocab * (1 + model_.num_mtp)) * as_double(p_.global_batch * p_.seq_len);
  if (p_.recompute == spec::Recompute::full) return model + (model - head) / 3;
  return model;
}

// A stage inside the pipeline has two neighbours, one at its end one.
double TimeModel::message_delay() const {
  const int64_t nodes = cluster_.num_nodes();
  const bool deep = efficiency_.deep_nodes > 0 && nodes >= efficiency_.deep_nodes && p_.pp > 2 && p_.zero > 0;
  // Without ZeRO small machines delay them as well, where many micro-batches meet a few data-parallel ranks.
  const bool plain =
      p_.zero == 0 && p_.dp() >= 4 && p_.micro_batches() >= 16 && nodes > 1 && 4 * nodes <= efficiency_.delay_nodes;
  if (p_.pp == 1 || !(is_far() || deep || plain)) return 0;
  return efficiency_.message_delay * (p_.pp > 2 ? 2.0 : 1.0);
}

StepEstimate TimeModel::plan() const {
  double m = as_double(p_.micro_batches()), v = as_double(p_.interleave);
  std::vector<ChunkTime> ranks(static_cast<size_t>(p_.pp));
  double last_backward = 0;
  for (int64_t stage = 0; stage < p_.pp * p_.interleave; ++stage) {
    ChunkTime one = chunk(stage);
    ChunkTime& rank = ranks[static_cast<size_t>(stage % p_.pp)];
    rank.forward += one.forward;
    rank.backward += one.backward;
    const StepTime& part = one.parts;
    StepTime& sum = rank.parts;
    sum.matmul += part.matmul, sum.attention += part.attention, sum.elementwise += part.elementwise;
    sum.loss += part.loss, sum.recompute += part.recompute, sum.host += part.host;
    sum.tensor_parallel += part.tensor_parallel, sum.context_parallel += part.context_parallel;
    sum.expert_parallel += part.expert_parallel, sum.data_parallel += part.data_parallel;
    if (stage == 0) last_backward = one.backward;
    // Tensor-parallel traffic between nodes needs the adapters that gradients wait for.
    if (stage == 0 && p_.tp > cluster_.per_node) last_backward -= part.tensor_parallel / 2;
  }
  size_t slowest = 0;
  double sum = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    double one = ranks[rank].forward + ranks[rank].backward;
    sum += one;
    if (one > ranks[slowest].forward + ranks[slowest].backward) slowest = rank;
  }
  const ChunkTime& busiest = ranks[slowest];
  StepEstimate plan;
  StepTime& t = plan.time;
  t = tail(last_backward * v);
  const StepTime& b = busiest.parts;
  t.matmul = m * b.matmul, t.attention = m * b.attention, t.elementwise = m * b.elementwise, t.loss = m * b.loss;
  t.recompute = m * b.recompute, t.host = m * b.host, t.tensor_parallel = m * b.tensor_parallel;
  t.context_parallel = m * b.context_parallel, t.expert_parallel = m * b.expert_parallel;
  t.data_parallel += m * b.data_parallel;
  t.pipeline_transfer = m * message_delay();
  t.bubble = p_.pp > 1 ? (sum - busiest.forward - busiest.backward) / v : 0;  // exactly
  // ZB-H1: the others wait for inputs' gradients only, and gradients of weights (half of a backward) fill their wait.
  if (spec::splits_backward(spec::pipeline_shape(p_))) {
    double backward = 0;
    for (const ChunkTime& rank : ranks) backward += rank.backward;
    t.bubble -= backward - busiest.backward;
  }
  if (p_.pp > 1) {
    double exposed = software_.overlaps_pipeline ? 0.2 : 1.0;
    t.pipeline_transfer += 2 * transfer() * (exposed * m * v + as_double(p_.pp - 1));
  }
  plan.seconds = t.total();
  plan.tokens_per_second = as_double(p_.global_batch * p_.seq_len) / plan.seconds;
  plan.model_flops = model_flops();
  plan.hardware_flops = hardware_flops();
  double all = cluster_.device.compute_rate(format_) * as_double(p_.ranks());
  plan.mfu = plan.model_flops / (plan.seconds * all);
  plan.hfu = plan.hardware_flops / (plan.seconds * all);
  return plan;
}

StepEstimate plan_step(const ModelShape& model, const spec::ParallelSpec& parallel, const Cluster& cluster,
                       const Software& software, const Efficiency& efficiency, MatrixFormat format) {
  return TimeModel(model, parallel, cluster, software, efficiency, format).plan();
}

}  // namespace sinter::plan
