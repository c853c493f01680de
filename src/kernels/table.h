// The kernel table: one function pointer per kernel, one table per backend (cpu/, cuda/, reference/, shapes/).
//
// Rules for every kernel:
//   - Letters as in core/dims.md. An empty Tensor means "not given". Tensors are row-major and on the stream's device.
//   - `compute format` is f32, bf16 or f16: one format for x, y, weights of one call unless said. Sums are f32.
//   - Outputs are overwritten unless the comment says ADDS. Nothing is allocated except scratch a backend keeps itself.
//   - CPU results do not depend on the number of threads, and a row's result does not depend on the other rows of the
//     call: matrix products sum over K in an order fixed by K alone, attention walks keys in tiles counted from each
//     sequence's start. That is what makes the CPU batch-invariant.
//   - CUDA kernels enqueue on the stream, never wait for it, never read device values on the host.
#pragma once
#include <cstdint>

#include "core/ragged_batch.h"
#include "core/tensor.h"
#include "core/weight_view.h"
#include "kernels/step_control.h"
#include "spec/model_spec.h"

namespace sinter::kernels {

using core::RaggedBatch;
using core::Stream;
using core::Tensor;
using core::WeightView;

// Identifies the random numbers of one use: see base::CounterRng.
struct RandomKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
};

// c = op(a) op(b) (+ bias) [ADDS into c when accumulate]. With group_offsets, a product per expert (see MatmulArgs).
struct MatmulArgs {
  Tensor a;      // (M, K), or (K, M) when transpose_a
  WeightView b;  // (K, N), or (N, K) when transpose_b
  Tensor c;      // (M, N): the format of a, or f32 (fp8: see below)
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  float alpha = 1.0f;  // scales the product, not the bias
  Tensor bias;         // (N) in the format of c, or empty
  // c = alpha op(a) op(b) (+ bias) + beta addend: as c, but another tensor. Without accumulate and groups.
  Tensor addend;
  float beta = 1.0f;
  int64_t batch = 1;  // products of one shape: a, b and c hold so many matrices end to end. Without bias and groups
  // Grouped over E experts (rows of a sorted by expert), offsets (E + 1) i32 on the device:
  //   transpose_a false: rows [o[e], o[e+1]) of a and c use b[e]; b is (E, N, K) or (E, K, N), c (M, N).
  //   transpose_a true:  c[e] (E, M, N) = a[rows of e]^T b[rows of e]; a is (R, M), b.data (R, N). Empty groups give 0
  //                      (or leave c as it is when accumulate).
  Tensor group_offsets;
  // fp8: a and b each f8e4m3 or f8e5m2 (not both e5m2), without groups, transpose_b and not transpose_a, M, N and K
  // multiples of 16; c is bf16, f16 or f32. The product is multiplied by element 0 of both scales.
  Tensor a_scale, b_scale;         // f32, as Fp8Scaling's rows
  bool fast_accumulation = false;  // may keep fewer bits of the running sums (about 14) than f32 has
  // (1) f32 or empty, only where the table leaves_squares: becomes the sum of the squares of all that c then holds, by
  // partial sums in an order fixed by its shape. c is f32, without groups and batch.
  Tensor c_squares;
};

// How a tensor is scaled into fp8: stored = round(value * scale), value ~ stored * inverse. A row of kSize f32 on the
// device, so that scales never pass through the host.
struct Fp8Scaling {
  static constexpr int64_t kInverse = 0;
  static constexpr int64_t kScale = 1;    // a power of two
  static constexpr int64_t kLargest = 2;  // largest |value| since the last fp8_rescale; NaN is above all
  static constexpr int64_t kLimit = 3;    // what |value * scale| should not exceed
  static constexpr int64_t kHistory = 4;  // largest |value| of the last steps, newest first
  static constexpr int64_t kHistorySteps = 16;
  static constexpr int64_t kSize = kHistory + kHistorySteps;
};
// Where a kernel leaves an fp8 matrix, in both orders: products read both factors along the axis they sum over.
struct Fp8Output {
  Tensor scaling;     // (kSize) f32: scale is read, largest grows to |value| where that is larger
  Tensor values;      // (R, C) f8e4m3 or f8e5m2, or empty
  Tensor transposed;  // (C, R) in the same format, or empty; with neither, only `largest` is found
};
struct Fp8QuantizeArgs {
  Tensor x;  // (R, C) compute format, R and C multiples of 16
  Fp8Output y;
};
struct Fp8SwigluForwardArgs {  // y = silu(gate) * up for x = [gate | up]
  Tensor x;                    // (R, 2F) compute format, R and F multiples of 16
  Fp8Output y;                 // (R, F)
};
struct Fp8SwigluBackwardArgs {
  Tensor dy;     // (R, F) compute format
  Tensor x;      // (R, 2F)
  Fp8Output dx;  // (R, 2F)
};
// Ends a step for each row: a `largest` that is finite and not 0 joins the history; scale becomes the largest power of
// two that keeps the largest of the history within the limit (1 while the history is empty); largest becomes 0.
struct Fp8RescaleArgs {
  Tensor scalings;  // (S, kSize) f32
};

struct ColumnSumArgs {  // y[n] = sum over rows; ADDS when accumulate: the gradient of a bias
  Tensor x;             // (R, N) compute format
  Tensor y;             // (N) f32
  bool accumulate = true;
};

struct EmbeddingForwardArgs {
  Tensor tokens;          // (T) i32
  Tensor positions;       // (T) i32; used with position_table
  Tensor table;           // (V, C) compute format
  Tensor position_table;  // (P, C) compute format, or empty
  Tensor y;               // (T, C)
};
struct EmbeddingBackwardArgs {  // ADDS into the tables' gradients, in a fixed order
  Tensor tokens;                // (T) i32
  Tensor positions;             // (T) i32
  Tensor dy;                    // (T, C)
  Tensor dtable;                // (V, C) f32
  Tensor dposition_table;       // (P, C) f32, or empty
  // (1) f32 or empty, only where the table leaves_squares: holds the sum of the squares of dtable, and is kept so.
  Tensor dtable_squares;
};

struct NormForwardArgs {  // s = x + residual, rounded to its format; y = norm(s) * weight (+ bias)
  spec::NormKind kind = spec::NormKind::rms;
  float eps = 1e-5f;
  Tensor x;         // (R, C)
  Tensor residual;  // (R, C) or empty
  Tensor weight;    // (C) f32
  Tensor bias;      // (C) f32 or empty
  Tensor sum;       // (R, C): s, written when residual is given; may alias x or residual
  Tensor y;         // (R, C)
  Tensor mean;      // (R) f32, layer norm only
  Tensor rstd;      // (R) f32
};
struct NormBackwardArgs {  // ds = d(norm)/ds dy (+ dsum); ADDS into dweight, dbias
  spec::NormKind kind = spec::NormKind::rms;
  Tensor dy;       // (R, C)
  Tensor dsum;     // (R, C) or empty: gradient that reaches s past the norm
  Tensor s;        // (R, C): what was normalised
  Tensor weight;   // (C) f32
  Tensor mean;     // (R) f32, layer norm only
  Tensor rstd;     // (R) f32
  Tensor ds;       // (R, C); may alias dy or dsum
  Tensor dweight;  // (C) f32
  Tensor dbias;    // (C) f32 or empty
  Tensor ds_sums;  // (C) f32 or empty: ADDS the sums of ds over the rows, the gradient of a bias added into s
};

// RMSNorm over each head of Q and K in a packed QKV row; V is copied.
struct HeadNormForwardArgs {
  float eps = 1e-6f;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  Tensor qkv;       // (T, W)
  Tensor q_weight;  // (D) f32
  Tensor k_weight;  // (D) f32
  Tensor out;       // (T, W)
  Tensor rstd;      // (T, H + K) f32
};
struct HeadNormBackwardArgs {  // ADDS into dq_weight, dk_weight
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  Tensor dout;       // (T, W)
  Tensor qkv;        // (T, W): the forward's input
  Tensor q_weight;   // (D) f32
  Tensor k_weight;   // (D) f32
  Tensor rstd;       // (T, H + K) f32
  Tensor dqkv;       // (T, W); may alias dout
  Tensor dq_weight;  // (D) f32
  Tensor dk_weight;  // (D) f32
};

// Angles of every token: angle[t][i] = positions[t] * inv_freq[sequence][i], in f32.
struct RopeTableArgs {
  Tensor positions;    // (T) i32
  Tensor sequence_of;  // (T) i32: row of inv_freq; unused when inv_freq has one row
  Tensor inv_freq;     // (1 or S, D/2) f32
  float scale = 1.0f;  // multiplies cos and sin (yarn)
  Tensor cos_sin;      // (T, D) f32: D/2 cosines, then D/2 sines
};
// Rotates the first `num_rotated` heads of each row in place: (a, b) = halves of a head -> (a c - b s, b c + a s).
struct RopeArgs {
  int64_t num_rotated = 0, head_dim = 0;
  Tensor x;              // (T, W) in place
  Tensor cos_sin;        // (T, D) f32
  bool inverse = false;  // the gradient: rotate back
};

// Writes keys and values of a packed QKV batch into the paged cache of one layer.
struct KvWriteArgs {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  Tensor qkv;     // (T, W)
  Tensor slots;   // (T) i32, -1 = skip
  Tensor keys;    // (num_blocks, block_size, K, D)
  Tensor values;  // (num_blocks, block_size, K, D)
};

// Causal attention inside each sequence of a ragged batch, flash style: never a (T, T) matrix in memory.
// Query i of a sequence with context c and q tokens here stands at position c - q + i and sees keys at positions
// (position - window, position] (window 0: all up to its own). With `layer_keys` given, keys and values come from the
// paged cache (already written for this batch), else from qkv, where contexts equal query lengths.
struct AttentionShape {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t window = 0;
  float scale = 1.0f;
  // On the probabilities: kept where key.uniform(i) >= dropout, i = first_dropped() + key position.
  float dropout = 0.0f;
  RandomKey key;
  int64_t first_token =
      0;  // number of the batch's first row among all of the step: masks do not depend on micro-batches
  static constexpr int kContextBits = 24;
  uint64_t first_dropped(int64_t head, int64_t row) const {
    return static_cast<uint64_t>((first_token + row) * num_heads + head) << kContextBits;
  }
};
struct AttentionForwardArgs {
  AttentionShape shape;
  const RaggedBatch* batch = nullptr;
  Tensor qkv;           // (T, W)
  Tensor layer_keys;    // (num_blocks, block_size, K, D) or empty
  Tensor layer_values;  // (num_blocks, block_size, K, D) or empty
  Tensor block_tables;  // (S, max_blocks) i32 or empty
  Tensor out;           // (T, H * D); rows of padding tokens are set to 0
  Tensor lse;           // (H, T) f32 or empty: log of the sum of exp(scale * score), for backward
};
struct AttentionBackwardArgs {  // without a cache only
  AttentionShape shape;
  const RaggedBatch* batch = nullptr;
  Tensor qkv;    // (T, W)
  Tensor out;    // (T, H * D)
  Tensor lse;    // (H, T) f32
  Tensor dout;   // (T, H * D)
  Tensor delta;  // (H, T) f32 scratch: row sums of dout * out
  Tensor dqkv;   // (T, W)
};

// y = act(gate) * up for x = [gate | up] (R, 2F) when gated, else y = act(x) for x (R, F).
struct ActivationForwardArgs {
  spec::Activation kind = spec::Activation::silu;
  bool gated = true;
  Tensor x;      // (R, 2F) or (R, F)
  Tensor y;      // (R, F); without a gate it may alias x
  Tensor slope;  // (R, F) or empty, without a gate: act'(x) in the format of y
};
struct ActivationBackwardArgs {
  spec::Activation kind = spec::Activation::silu;
  bool gated = true;
  Tensor dy;       // (R, F)
  Tensor x;        // (R, 2F) or (R, F); empty with slope
  Tensor dx;       // as x; may alias x, or dy without a gate
  Tensor dx_sums;  // (F) f32 or empty, without gate: ADDS the sums of dx over the rows, the gradient of a bias added
                   // into x
  Tensor slope;    // (R, F) or empty, without a gate: instead of x, dx = dy * slope
};

// y = x * mask / (1 - p); element i of the call is kept where key.uniform(first_index + i) >= p. y may alias x. Its own
// gradient.
struct DropoutArgs {
  float p = 0.0f;
  RandomKey key;
  uint64_t first_index = 0;
  Tensor x, y;
};

// Softmax cross entropy of each row; when write_gradient, logits become (softmax - onehot) * scale in place.
struct CrossEntropyArgs {
  static constexpr int64_t kMostApart = 64;
  Tensor logits;   // (R, V) compute format or f32
  Tensor targets;  // (R) i32; -1 = no loss, zero gradient
  Tensor losses;   // (R) f32: 0 where not supervised
  Tensor scale;    // (1) f32: gradient of the total loss with respect to a row's loss
  bool write_gradient = false;
  // (R, W) as logits, or empty: columns V to V + W, at most kMostApart, of logits that are kept in two pieces.
  Tensor last_logits;
};

// Mixture of experts. A token's k choices are its slots t * k + j; sorted rows are slots ordered by (expert, slot).
struct RouterForwardArgs {  // softmax over E, the k largest (ties: lower expert first), renormalised when asked
  int64_t experts_per_token = 1;
  bool norm_topk_prob = true;
  Tensor logits;   // (T, E) compute format or f32
  Tensor probs;    // (T, E) f32
  Tensor experts;  // (T, k) i32
  Tensor weights;  // (T, k) f32
};
struct RouterBackwardArgs {
  bool norm_topk_prob = true;
  Tensor dweights;       // (T, k) f32
  Tensor probs;          // (T, E) f32
  Tensor experts;        // (T, k) i32
  Tensor weights;        // (T, k) f32
  Tensor group_offsets;  // (E + 1) i32
  Tensor balance_scale;  // (1) f32 or empty: d(total loss)/d(balance loss), with balance loss = E * sum_e f_e P_e,
                         // f_e = slots of e / T, P_e = mean over t of probs
  Tensor dlogits;        // (T, E) in the format of logits
};
struct BalanceLossArgs {  // ADDS E * sum_e f_e P_e into loss
  Tensor probs;           // (T, E) f32
  Tensor group_offsets;   // (E + 1) i32
  Tensor loss;            // (1) f32
};
struct ExpertSortArgs {
  Tensor experts;        // (T, k) i32
  Tensor group_offsets;  // (E + 1) i32 out
  Tensor row_of_slot;    // (T * k) i32 out
  Tensor slot_of_row;    // (T * k) i32 out: the inverse
};
struct ExpertGatherArgs {  // y[row] = x[slot_of_row[row] / k]
  Tensor x;                // (T, C)
  Tensor slot_of_row;      // (T * k) i32
  Tensor y;                // (T * k, C)
};
struct ExpertCombineArgs {  // y[t] = sum_j weight[t, j] * x[row_of_slot[t k + j]], j ascending; weights empty = all 1
  Tensor x;                 // (T * k, C)
  Tensor row_of_slot;       // (T * k) i32
  Tensor weights;           // (T, k) f32 or empty
  Tensor y;                 // (T, C)
};
struct ExpertCombineBackwardArgs {
  Tensor dy;           // (T, C)
  Tensor x;            // (T * k, C)
  Tensor row_of_slot;  // (T * k) i32
  Tensor weights;      // (T, k) f32
  Tensor dx;           // (T * k, C)
  Tensor dweights;     // (T, k) f32
};

// Optimizers work on flat ranges. control (2 or kControlSize) f32 on the device, places as in kernels/step_control.h:
// [0] multiplies every gradient, [1] 0 = skip the update.
struct AdamwArgs {
  Tensor master;  // (n) f32
  Tensor grad;    // (n) f32 or bf16
  Tensor m, v;    // (n) f32 or bf16
  Tensor copy;    // (n) compute format or empty: the rounded weight the next step multiplies by
  Tensor control;
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0;
  int64_t step = 1;  // counts from 1, for the bias corrections when control has 2 numbers; else they stand in it
  // Stochastic rounding of bf16 states: element i adds 16 random bits below the kept ones, then truncates; m takes the
  // high half of key.bits(i), v the low half.
  RandomKey key;
};
struct SgdArgs {  // velocity = momentum * velocity + g; p -= lr * velocity (velocity empty: plain)
  Tensor master, grad, velocity, copy, control;
  float lr = 0, momentum = 0, weight_decay = 0;
};
// Muon before its iterations: b = mu b + (1 - mu) g, d = (1 - mu) g + mu b for g = control[0] grad.
struct MuonMomentumArgs {
  Tensor grad;       // (n) f32 or bf16
  Tensor momentum;   // (n) f32, or bf16 rounded like m of adamw
  Tensor direction;  // (n) f32 or bf16 out: d
  Tensor control;
  float mu = 0.95f;
  RandomKey key;
};
struct NormalizeArgs {  // every row divided by (its norm + eps), in place
  Tensor x;             // (R, n) f32 or bf16
  float eps = 1e-7f;
};
struct SumArgs {  // total = sum of x, added in f64 in an order fixed by n and rounded once
  Tensor x;       // (n) f32
  Tensor total;   // (1) f32
};
struct SumSquaresArgs {  // ADDS sum x^2 into total, by partial sums in an order fixed by n
  Tensor x;              // (n) f32 or bf16
  Tensor total;          // (1) f32
};
// decide_step (kernels/step_control.h) where the numbers are.
struct StepControlArgs {
  StepRule rule;
  Tensor loss_sum;        // (1) f32: over the step's supervised tokens
  float loss_factor = 1;  // 1 / their number
  Tensor norm_squared;    // (1) f32: of the gradient of the scaled mean loss
  Tensor state;           // (step_state_size(rule.window)) f32
  Tensor control;         // (kControlSize) f32 out
  Tensor record;          // (kRecordSize) f32: the first kRecordOwn are written
};
struct AxpbyArgs {  // y = alpha x + beta y
  Tensor x, y;      // (n) any floating formats
  float alpha = 1, beta = 0;
};

struct FusedMatmulArgs;  // kernels/fused.h

struct KernelTable {
  const char* name;
  // Kernels that write weight gradients can sum their squares in passing: whoever needs the norm of them need not read
  // them again.
  bool leaves_squares = false;
  void (*fill)(Stream&, const Tensor& y, float value);
  void (*axpby)(Stream&, const AxpbyArgs&);  // also casts
  void (*matmul)(Stream&, const MatmulArgs&);
  // A product with an activation or its gradient, without gate, groups or an addend; null: fused_matmul() runs the
  // parts. The same bits as these.
  void (*matmul_activation)(Stream&, const FusedMatmulArgs&) = nullptr;
  void (*column_sum)(Stream&, const ColumnSumArgs&);
  void (*embedding_forward)(Stream&, const EmbeddingForwardArgs&);
  void (*embedding_backward)(Stream&, const EmbeddingBackwardArgs&);
  void (*norm_forward)(Stream&, const NormForwardArgs&);
  void (*norm_backward)(Stream&, const NormBackwardArgs&);
  void (*head_norm_forward)(Stream&, const HeadNormForwardArgs&);
  void (*head_norm_backward)(Stream&, const HeadNormBackwardArgs&);
  void (*rope_table)(Stream&, const RopeTableArgs&);
  void (*rope)(Stream&, const RopeArgs&);
  void (*kv_write)(Stream&, const KvWriteArgs&);
  void (*attention_forward)(Stream&, const AttentionForwardArgs&);
  void (*attention_backward)(Stream&, const AttentionBackwardArgs&);
  void (*activation_forward)(Stream&, const ActivationForwardArgs&);
  void (*activation_backward)(Stream&, const ActivationBackwardArgs&);
  void (*dropout)(Stream&, const DropoutArgs&);
  void (*cross_entropy)(Stream&, const CrossEntropyArgs&);
  void (*router_forward)(Stream&, const RouterForwardArgs&);
  void (*router_backward)(Stream&, const RouterBackwardArgs&);
  void (*balance_loss)(Stream&, const BalanceLossArgs&);
  void (*expert_sort)(Stream&, const ExpertSortArgs&);
  void (*expert_gather)(Stream&, const ExpertGatherArgs&);
  void (*expert_combine)(Stream&, const ExpertCombineArgs&);
  void (*expert_combine_backward)(Stream&, const ExpertCombineBackwardArgs&);
  void (*adamw)(Stream&, const AdamwArgs&);
  void (*sgd)(Stream&, const SgdArgs&);
  void (*muon_momentum)(Stream&, const MuonMomentumArgs&);
  void (*normalize)(Stream&, const NormalizeArgs&);
  void (*sum)(Stream&, const SumArgs&);
  void (*sum_squares)(Stream&, const SumSquaresArgs&);
  void (*fp8_quantize)(Stream&, const Fp8QuantizeArgs&);
  void (*fp8_swiglu_forward)(Stream&, const Fp8SwigluForwardArgs&);
  void (*fp8_swiglu_backward)(Stream&, const Fp8SwigluBackwardArgs&);
  void (*fp8_rescale)(Stream&, const Fp8RescaleArgs&);
  void (*step_control)(Stream&, const StepControlArgs&);
};

// Product i of a call with a batch, on its own.
MatmulArgs matmul_of_batch(const MatmulArgs& args, int64_t i);

// The tables. cuda_table() is null when the backend is not built (kernels/cuda_absent.cc).
const KernelTable* cpu_table();
const KernelTable* cuda_table();
const KernelTable* shapes_table();
// Plain loops with f64 sums where it matters; on the CPU device. What every fast kernel is tested against.
const KernelTable* reference_table();

// The table of a device. Throws base::Error when there is none. SINTER_KERNELS=reference puts the plain loops in the
// CPU's place.
const KernelTable& kernels_for(core::Device device);

}  // namespace sinter::kernels
