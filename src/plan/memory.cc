#include "plan/memory.h"

#include <algorithm>

#include "base/error.h"
#include "spec/schedule.h"
#include "spec/stages.h"

namespace sinter::plan {
namespace {

double as_double(int64_t n) { return static_cast<double>(n); }

double bytes_of(base::DType dtype) { return static_cast<double>(base::dtype_bytes(dtype)); }

// Tokens of one micro-batch on one context-parallel rank.
double local_tokens(const spec::ParallelSpec& p) { return as_double(p.micro_batch * p.seq_len) / as_double(p.cp); }

bool is_first(const spec::ParallelSpec& p, int64_t stage) { return stage == 0; }
bool is_last(const spec::ParallelSpec& p, int64_t stage) { return stage == p.pp - 1; }

// Calls visit(block, layers) for each kind of block a pipeline rank holds, all its chunks together.
template <class Visit>
void for_blocks(const ModelShape& model, const spec::ParallelSpec& p, const Software& software, int64_t stage,
                Visit visit) {
  std::vector<int64_t> count(model.kinds.size(), 0);
  for (int64_t chunk = 0; chunk < p.interleave; ++chunk) {
    spec::LayerRange range = stage_layers(model, p, software, chunk * p.pp + stage);
    for (int64_t layer = range.begin; layer < range.begin + range.count; ++layer) {
      ++count[model.kind_of_layer[static_cast<size_t>(layer)]];
    }
  }
  if (is_last(p, stage) && model.num_mtp > 0) count[model.kind_of_layer.back()] += model.num_mtp;
  for (size_t kind = 0; kind < count.size(); ++kind) {
    if (count[kind] > 0) visit(model.kinds[kind], count[kind]);
  }
}

double block_parameters(const BlockShape& block, const spec::ParallelSpec& p, double* experts) {
  *experts = as_double(block.expert_parameters) / as_double(p.ep * expert_tp(p));
  return as_double(block.cut_parameters) / as_double(p.tp) + as_double(block.whole_parameters);
}

struct StateBytes {
  double weights, gradients, master, optimizer;
};

// Bytes per parameter held, given how many ways each part is divided.
StateBytes state_bytes(const spec::ParallelSpec& p, double shards) {
  double master = p.master == p.compute ? 0.0 : bytes_of(p.master);
  double divide[3] = {p.zero >= 1 ? shards : 1.0, p.zero >= 2 ? shards : 1.0, p.zero >= 3 ? shards : 1.0};
  return {bytes_of(p.compute) / divide[2], bytes_of(p.main_gradients) / divide[1], master / divide[0],
          p.num_moments * bytes_of(p.moments) / divide[0]};
}

void add_state(const spec::ParallelSpec& p, double parameters, double shards, StageMemory& memory) {
  StateBytes bytes = state_bytes(p, shards);
  memory.device.weights += parameters * bytes.weights;
  memory.device.gradients += parameters * bytes.gradients;
  memory.device.master += parameters * bytes.master;
  memory.device.optimizer += parameters * bytes.optimizer;
}

void move_to_host(const spec::ParallelSpec& p, const StageParameters& params, StageMemory& memory) {
  MemoryParts& d = memory.device;
  auto move = [&](double& part) {
    memory.host_bytes += part;
    part = 0;
  };
  if (p.offload.optimizer) {
    move(d.master);
    move(d.optimizer);
  }
  // Two blocks stay on the device: the one in use and the one that travels.
  if (p.offload.gradients) {
    move(d.gradients);
    d.buffers += 2 * params.largest_block * bytes_of(p.main_gradients);
  }
  if (p.offload.parameters) {
    move(d.weights);
    d.buffers += 2 * params.largest_block * bytes_of(p.compute);
  }
}

void add_activations(const ModelShape& model, const spec::ParallelSpec& p, const Software& software, int64_t stage,
                     StageMemory& memory) {
  double in_flight = as_double(spec::max_in_flight(spec::pipeline_shape(p), stage));
  double per_micro_batch = 0, working_set = 0;
  for_blocks(model, p, software, stage, [&](const BlockShape& block, int64_t layers) {
    BlockActivations a = block_activations(model, block, p, software);
    double kept = a.total();
    if (p.recompute == spec::Recompute::full) kept = a.checkpoint;
    if (p.recompute == spec::Recompute::selective && software.selective_drops_norms) {
      kept -= 2 * a.checkpoint + a.activation;
    } else if (p.recompute == spec::Recompute::selective) {
      // Where selected products are computed again too, their outputs are not kept either.
      double outside = a.attention + a.mlp - a.checkpoint;
      kept = a.checkpoint + (1 - software.selective_matmul_share) * outside;
    }
    per_micro_batch += kept * as_double(layers);
    working_set = std::max(working_set, a.total() - kept);
  });
  // One chunk of one micro-batch is per_micro_batch / interleave.
  double kept = per_micro_batch / as_double(p.interleave) * in_flight;
  if (p.offload.activations) {
    memory.host_bytes += kept;
    double layers = as_double(std::max<int64_t>(1, memory.num_layers));
    kept = 2 * per_micro_batch / layers;
  }
  double tokens = local_tokens(p);
  double hidden = as_double(model.hidden) / (p.sequence_parallel ? as_double(p.tp) : 1.0);
  memory.device.activations += software.activation_scale * (kept + working_set);
  if (is_first(p, stage) && model.has_dropout) memory.device.activations += tokens * hidden * in_flight;
  if (p.pp > 1) memory.device.buffers += 2 * bytes_of(p.compute) * tokens * hidden;  // arriving and leaving
  if (p.cp > 1) {  // ring attention: keys and values in use and those arriving
    memory.device.buffers += 2 * 2 * bytes_of(p.compute) * tokens * as_double(model.kv_width) /
                             as_double(std::min(p.tp, model.num_kv_heads));
  }
  if (is_last(p, stage)) {
    if (software.keeps_head_input) memory.device.activations += 2 * bytes_of(p.compute) * tokens * hidden;
    double entries = tokens * as_double(model.vocab) / as_double(p.tp) * as_double(1 + model.num_mtp);
    double logits = software.logit_bytes * entries;
    memory.device.logits += software.loss_chunk_bytes > 0 ? std::min(logits, software.loss_chunk_bytes) : logits;
  }
}

void add_buffers(const spec::ParallelSpec& p, const Software& software, const StageParameters& params,
                 StageMemory& memory) {
  MemoryParts& d = memory.device;
  double parameters = params.dense + params.experts;
  if (p.zero >= 3 && p.shard > 1 && p.pp > 1) {  // a pipeline would gather again for every micro-batch: it keeps them
    d.buffers += parameters * (bytes_of(p.compute) + bytes_of(p.main_gradients));
  } else if (p.zero >= 3 && p.shard > 1) {  // the block in use and the one being fetched; gradients before they are cut
    d.buffers += 2 * params.largest_block * bytes_of(p.compute) + params.largest_block * bytes_of(p.main_gradients);
  }
  d.buffers += software.gradient_copy_bytes * parameters;
  double owned = parameters / (p.zero >= 1 ? as_double(dense_shards(p)) : 1.0);
  if (!p.offload.optimizer) d.buffers += software.step_bytes_per_parameter * owned;
}

}  // namespace

int64_t expert_tp(const spec::ParallelSpec& p) { return p.dp() * p.cp % p.ep == 0 ? p.tp : 1; }

int64_t dense_shards(const spec::ParallelSpec& p) { return p.shard * p.cp; }

int64_t expert_shards(const spec::ParallelSpec& p) {
  return std::max<int64_t>(1, p.shard * p.cp * p.tp / (p.ep * expert_tp(p)));
}

std::array<double, 8> part_values(const MemoryParts& m) {
  return {m.weights, m.gradients, m.master, m.optimizer, m.activations, m.logits, m.buffers, m.overhead};
}

const StageMemory& MemoryEstimate::worst() const {
  return *std::max_element(stages.begin(), stages.end(), [](const StageMemory& a, const StageMemory& b) {
    return a.device.total() < b.device.total();
  });
}

namespace {

double matmul_cost(const ModelShape& model, int64_t layer) {
  double cost = 0;
  for (const Matmul& m : model.block(layer).matmuls)
    cost += as_double(m.inputs * m.outputs) * (m.is_expert ? as_double(model.experts_per_token) : 1.0);
  return cost;
}

}  // namespace

spec::LayerRange stage_layers(const ModelShape& model, const spec::ParallelSpec& p, const Software& software,
                              int64_t virtual_stage) {
  const int64_t stages = p.pp * p.interleave;
  if (software.name == "sinter" && stages > 1) {  // as spec::stages_of
    std::vector<double> layers;
    for (int64_t layer = 0; layer < model.num_layers; ++layer) layers.push_back(matmul_cost(model, layer));
    const double extra = as_double(model.num_mtp);
    const double head = (1 + extra) * as_double(model.hidden * model.vocab) + extra * layers.back();
    return spec::stages_by_cost(layers, head, stages)[static_cast<size_t>(virtual_stage)];
  }
  if (!software.balances_head || p.interleave > 1 || p.pp == 1) {
    return spec::layers_of_stage(model.num_layers, stages, virtual_stage);
  }
  // A stage takes blocks until its share of the work is passed; the head is the last block.
  auto cost_of = [&](int64_t layer) { return matmul_cost(model, layer); };
  double total = as_double(model.hidden * model.vocab);
  for (int64_t layer = 0; layer < model.num_layers; ++layer) total += cost_of(layer);
  double done = 0;
  int64_t stage = 0, begin = 0;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    done += cost_of(layer);
    if (done <= total * as_double(stage + 1) / as_double(p.pp)) continue;
    if (stage == virtual_stage) return {begin, layer + 1 - begin};
    ++stage, begin = layer + 1;
  }
  if (stage == virtual_stage) return {begin, model.num_layers - begin};
  return {model.num_layers, 0};
}

StageParameters stage_parameters(const ModelShape& model, const spec::ParallelSpec& p, int64_t stage,
                                 const Software& software) {
  StageParameters sum;
  for_blocks(model, p, software, stage, [&](const BlockShape& block, int64_t layers) {
    double experts = 0, dense = block_parameters(block, p, &experts);
    sum.dense += dense * as_double(layers);
    sum.experts += experts * as_double(layers);
    sum.largest_block = std::max(sum.largest_block, dense + experts);
    sum.num_layers += layers;
  });
  double tp = as_double(p.tp);
  double table = as_double(model.embedding_parameters) / tp;
  if (is_first(p, stage)) sum.dense += table + as_double(model.position_parameters);
  if (is_last(p, stage)) {
    sum.dense += as_double(model.final_parameters) + as_double(model.head_parameters) / tp;
    if (model.tied_head && p.pp > 1) sum.dense += table;  // a copy of the table beside the loss
  }
  return sum;
}

BlockActivations block_activations(const ModelShape& model, const BlockShape& block, const spec::ParallelSpec& p,
                                   const Software& software) {
  const double e = bytes_of(p.compute), tokens = local_tokens(p), tp = as_double(p.tp);
  const double replicated = p.sequence_parallel ? tp : 1.0;  // what divides the parts outside the tp regions
  const double h = as_double(model.hidden), heads = as_double(model.num_heads);
  const double kv = as_double(model.kv_width) / as_double(std::min(p.tp, model.num_kv_heads));
  const double mask = model.has_dropout ? 1.0 : 0.0;
  BlockActivations a;
  a.checkpoint = e * tokens * h / replicated;
  // Norm input, qkv input; q, k, v; the projection's input; its dropout mask.
  a.attention = tokens * (2 * e * h / replicated + mask * h / replicated);
  a.attention += tokens * e * (as_double(model.qk_width()) / tp + 2 * kv + as_double(model.v_width()) / tp);
  if (software.keeps_rotated && model.has_rope) a.attention += tokens * e * (as_double(model.qk_width()) / tp + kv);
  if (software.flash_attention) {
    a.attention_core = 4 * tokens * heads / tp;
  } else {  // softmax output, its dropout mask and output, over the keys each query sees
    double keys = as_double(block.window > 0 ? std::min(block.window, p.seq_len) : p.seq_len);
    a.attention_core = (2 * e + mask) * tokens * keys * heads / tp;
  }
  // Norm input, MLP input, dropout mask; then the widened activations.
  a.mlp = tokens * (2 * e * h / replicated + mask * h / replicated);
  if (software.keeps_gathered && p.sequence_parallel) {  // the inputs of both regions, beside the own piece
    a.attention += tokens * e * h * (1 - 1 / tp);
    a.mlp += tokens * e * h * (1 - 1 / tp);
  }
  const double widened = model.gated_mlp ? software.gated_widths : 2;
  if (!block.is_sparse) {
    a.mlp += tokens * e * widened * as_double(model.ffn) / tp;
    a.activation = tokens * e * as_double(model.ffn) / tp;
  } else {
    double copies = as_double(model.experts_per_token);
    double expert_cut = as_double(expert_tp(p)), token_cut = expert_tp(p) == 1 ? tp : 1.0;
    a.activation = tokens * copies * e * as_double(model.moe_ffn) / (expert_cut * token_cut);
    a.mlp += tokens * copies * e * (2 * h / token_cut + widened * as_double(model.moe_ffn) / (expert_cut * token_cut));
    a.mlp += tokens * (8 * as_double(model.num_experts) + 8 * copies);  // router's logits and shares, permutation
    a.mlp += tokens * e * widened * as_double(model.shared_ffn) / tp;
  }
  return a;
}

StageMemory plan_stage_memory(const ModelShape& model, const spec::ParallelSpec& p, const Software& software,
                              int64_t stage) {
  StageMemory memory;
  memory.stage = stage;
  StageParameters params = stage_parameters(model, p, stage, software);
  memory.num_layers = params.num_layers;
  memory.parameters = params.dense + params.experts;
  add_state(p, params.dense, as_double(dense_shards(p)), memory);
  add_state(p, params.experts, as_double(expert_shards(p)), memory);
  add_buffers(p, software, params, memory);
  add_activations(model, p, software, stage, memory);
  move_to_host(p, params, memory);
  double allocated = memory.device.total();
  memory.device.overhead = software.overhead_bytes + (software.fragmentation - 1.0) * allocated;
  return memory;
}

MemoryEstimate plan_memory(const ModelShape& model, const spec::ParallelSpec& parallel, const Software& software) {
  MemoryEstimate plan;
  for (int64_t stage = 0; stage < parallel.pp; ++stage) {
    plan.stages.push_back(plan_stage_memory(model, parallel, software, stage));
  }
  return plan;
}

}  // namespace sinter::plan
