#include "plan/own_memory.h"

#include <algorithm>

#include "spec/parameters.h"

namespace sinter::plan {
namespace {

double as_double(int64_t n) { return static_cast<double>(n); }

// The logits that the loss holds at once.
double loss_chunk_bytes(const spec::ModelSpec& model, double tokens, double element) {
  const int64_t rows =
      spec::loss_chunk_rows(static_cast<int64_t>(tokens), model.vocab_size, static_cast<int64_t>(element));
  return as_double(rows * model.vocab_size) * element;
}

// What a block keeps for its backward pass and the most its backward holds beside that, in bytes.
struct BlockBytes {
  double kept = 0;
  double extra = 0;  // gradients at the worst moment, less what is already freed
};

// T tokens, C hidden, F MLP width, k experts per token; `up` is 2F for a gated MLP, else F.
BlockBytes block_bytes(const spec::ModelSpec& m, bool is_sparse, double T, double e, bool drops_norms) {
  const double C = as_double(m.hidden), W = as_double(m.qkv_width()), Q = as_double(m.q_width());
  const double stats = m.norm == spec::NormKind::layer ? 2 : 1;
  const double heads = as_double(m.num_heads), kv = as_double(m.num_kv_heads);
  const bool has_dropout = m.dropout.residual > 0;
  BlockBytes b;
  // Two residual sums, two norm outputs (made again under `selective`), their statistics.
  b.kept = e * T * C * (drops_norms ? 2 : 4) + 4 * T * 2 * stats;
  b.kept += e * T * (W + Q) + 4 * T * heads;                  // qkv, attention's output, log-sum-exp
  if (m.qk_norm) b.kept += e * T * W + 4 * T * (heads + kv);  // qkv before its norm
  double rows = T, F = as_double(m.ffn);
  if (is_sparse) {
    const double E = as_double(m.moe.num_experts), k = as_double(m.moe.experts_per_token);
    rows = T * k, F = as_double(m.moe.ffn);
    b.kept += e * 2 * rows * C + 4 * (2 * T * E + 4 * rows);  // rows in and out; logits, shares, choice, places
  }
  const double up = (m.gated_mlp ? 2 : 1) * F, act = drops_norms ? 0 : F;
  b.kept += e * rows * (up + act);
  // Backward of the activation: gradients of its output and input; the output's own value is gone by then. Experts'
  // outputs are gone too.
  double expert_rows = is_sparse ? rows * C : 0;
  double at_activation = e * (T * C + rows * (F + up) - rows * act - expert_rows);
  double at_down = e * (T * C * (has_dropout ? 2 : 1) + rows * F + (drops_norms ? rows * F : 0));
  double at_combine = e * (T * C + expert_rows);
  b.extra = std::max({at_activation, at_down, at_combine});
  return b;
}

}  // namespace

double own_activation_peak(const spec::ModelSpec& m, const OwnRun& run) {
  const double T = as_double(run.num_tokens), e = static_cast<double>(base::dtype_bytes(run.compute));
  const double C = as_double(m.hidden), logits = loss_chunk_bytes(m, T, e);
  const double stats = m.norm == spec::NormKind::layer ? 2 : 1;
  const bool is_full = run.recompute == spec::Recompute::full, drops = run.recompute == spec::Recompute::selective;
  const double row = e * T * C, ahead = as_double(m.mtp_heads);
  double kept = 0, largest = 0, last_extra = 0;
  for (int64_t layer = 0; layer < m.num_layers + m.mtp_heads; ++layer) {
    BlockBytes b = block_bytes(m, m.is_sparse(layer), T, e, drops);
    // A block starts from one tensor, whose sum need not be kept beside it, unless experts or dropout stand before it:
    // then what they add and the stream they add it to come apart.
    const bool starts_from_two =
        layer > 0 && layer < m.num_layers && (m.is_sparse(layer - 1) || m.dropout.residual > 0);
    double sum = starts_from_two ? 0 : row;
    if (is_full) {
      kept += starts_from_two ? 2 * row : layer < m.num_layers ? row : 0;
    } else {
      kept += b.kept - (layer >= m.num_layers ? row : 0);
    }
    largest = std::max(largest, b.kept - sum + std::max(b.extra, 3 * row));
    last_extra = b.extra;
  }
  if (m.rope.kind != spec::RopeKind::none) kept += 4 * T * as_double(m.head_dim) * (1 + ahead);  // cosines and sines
  // Every head leaves its final sum and the gradient of its norm; the norm itself lives until the loss is done.
  double at_loss = kept + (1 + ahead) * (2 * row + 4 * T * stats) + row + logits;
  if (ahead > 0) at_loss += 2 * row;  // the extra head's norm and the stream it came from
  double at_backward = kept + 2 * ahead * row + (is_full ? largest : last_extra);
  return std::max(at_loss, at_backward);
}

MemoryParts own_trainer_memory(const spec::ModelSpec& m, const OwnRun& run) {
  const double n = as_double(spec::count_parameters(m).total);
  const double T = as_double(run.num_tokens), e = static_cast<double>(base::dtype_bytes(run.compute));
  const double heads = as_double(m.mtp_heads), steps = as_double(run.max_micro_batches);
  MemoryParts parts;
  parts.weights = n * e;
  parts.master = run.compute == base::DType::f32 ? 0 : 4 * n;
  double matrices = 0;
  for (const spec::ParameterSpec& p : spec::make_parameter_table(m)) {
    const bool is_matrix = p.role == spec::ParameterRole::matrix || p.role == spec::ParameterRole::expert_matrix;
    if (is_matrix) matrices += as_double(p.num_elements());
  }
  parts.gradients = 4 * (n - matrices) + static_cast<double>(base::dtype_bytes(run.gradients)) * matrices;
  parts.optimizer = static_cast<double>(base::dtype_bytes(run.moments)) * n * run.num_moments;
  parts.logits = loss_chunk_bytes(m, T, e);
  parts.activations = own_activation_peak(m, run) - parts.logits;
  parts.buffers = 4 * (5 * T + 2 * as_double(run.num_sequences) + 1 + steps * T * (1 + heads) + 2 * heads * T);
  return parts;
}

}  // namespace sinter::plan
