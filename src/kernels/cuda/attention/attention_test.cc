// Cases: attention over ragged batches, windows, grouped heads, paged keys, dropout; equal lengths and documents of
// training batches take cuDNN, equal lengths with heads of 64 in bf16 on Hopper our own kernels for it.
#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "core/graph.h"
#include "kernels/cuda/attention/cudnn_attention.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/test_harness.h"
#include "kernels/fused.h"

namespace sinter::kernels::cuda_test {
namespace {

struct AttentionCase {
  std::vector<int32_t> lengths;
  int64_t heads, kv_heads, dim, window;
  float dropout = 0;
  int64_t padding = 0;
  bool equal_lengths = false;
  bool is_training = false;  // the host has a bound on the number of sequences that are not empty
};

struct BatchHandles {
  int offsets, contexts, sequence_of;
  int64_t tokens, max_query, max_context;
};

BatchHandles add_batch(Case& c, const AttentionCase& a, const std::vector<int32_t>& contexts) {
  std::vector<int32_t> offsets = {0}, sequence_of;
  for (size_t s = 0; s < a.lengths.size(); ++s) {
    offsets.push_back(offsets.back() + a.lengths[s]);
    sequence_of.insert(sequence_of.end(), static_cast<size_t>(a.lengths[s]), static_cast<int32_t>(s));
  }
  sequence_of.insert(sequence_of.end(), static_cast<size_t>(a.padding), -1);
  int64_t sequences = static_cast<int64_t>(a.lengths.size()), tokens = static_cast<int64_t>(sequence_of.size());
  return {c.integers({sequences + 1}, offsets),
          c.integers({sequences}, contexts),
          c.integers({tokens}, sequence_of),
          tokens,
          *std::max_element(a.lengths.begin(), a.lengths.end()),
          *std::max_element(contexts.begin(), contexts.end())};
}

RaggedBatch make_batch(const AttentionCase& a, const BatchHandles& h, const Case::Select& at) {
  RaggedBatch b;
  b.offsets = at(h.offsets);
  b.contexts = at(h.contexts);
  b.sequence_of = at(h.sequence_of);
  b.num_tokens = h.tokens;
  b.num_sequences = static_cast<int64_t>(a.lengths.size());
  b.max_query = h.max_query;
  b.max_context = h.max_context;
  b.equal_lengths = a.equal_lengths;
  if (a.is_training) b.filled_sequences = b.num_sequences + 3;  // a bound: some more than there are
  return b;
}

AttentionShape make_shape(const AttentionCase& a) {
  AttentionShape s;
  s.num_heads = a.heads, s.num_kv_heads = a.kv_heads, s.head_dim = a.dim, s.window = a.window;
  s.scale = 1.0f / std::sqrt(static_cast<float>(a.dim));
  s.dropout = a.dropout, s.key = {3, 4};
  return s;
}

std::string text_of(const AttentionCase& a) {
  std::string lengths;
  for (int32_t l : a.lengths) lengths += (lengths.empty() ? "" : "+") + std::to_string(l);
  return fmt::format("{} H {}/{} D {}{}{}{}", lengths, a.heads, a.kv_heads, a.dim,
                     a.window ? fmt::format(" w {}", a.window) : "", a.dropout > 0 ? " drop" : "",
                     a.equal_lengths ? " equal" : (a.is_training ? " documents" : ""));
}

// Documents of training batches must have taken cuDNN: a call to either direction; f32, grouped heads and deterministic
// runs aside.
void expect_cudnn(Case& c, DType t, const AttentionCase& a, int64_t before, int64_t calls) {
  if (!a.is_training || before < 0) return;
  const bool is_grouped = a.kv_heads < a.heads;
  bool takes = t != DType::f32 && !is_grouped && cuda::options().cudnn && !cuda::options().deterministic;
  c.expect_true(cuda::num_ragged_cudnn_calls() - before == (takes ? calls : 0), takes ? "by cuDNN" : "by our own");
}

double limit_of(DType t) { return t == DType::f32 ? 2e-5 : (t == DType::bf16 ? 8e-3 : 2e-3); }

// Equal lengths with heads of 64 in bf16 must have taken our kernels for Hopper where there is one.
void expect_sm90(Case& c, DType t, const AttentionCase& a, int64_t before, int64_t calls) {
  const bool is_hopper = cuda::compute_capability({core::DeviceKind::cuda, 0}) == 90;
  if (!a.equal_lengths || !is_hopper || !cuda::options().sm90_attention || cuda::options().shared_bytes > 0) return;
  if (cuda::options().deterministic) return;  // forward alone
  const bool takes = t == DType::bf16 && a.dim == 64;
  c.expect_true(cuda::num_sm90_attention_calls() - before == (takes ? calls : 0), takes ? "by ours" : "by others");
}

// The gradient of packed rows, from the tables' own out and lse; or that of the rows before their rotation.
void test_backward(DType t, const AttentionCase& a, bool is_rotated) {
  const char* name = is_rotated ? "attention_rotated" : "attention_backward";
  if (is_rotated && !wants(name)) return;
  const AttentionShape shape = make_shape(a);
  const int64_t width = (a.heads + 2 * a.kv_heads) * a.dim;
  Case c(name, t, text_of(a));
  // cuDNN's default backward and ours for Hopper add dQ by atomics; the deterministic switch has its own algorithm.
  if (a.equal_lengths || a.is_training) c.skip_determinism();
  BatchHandles batch = add_batch(c, a, a.lengths);
  int qkv = c.random({batch.tokens, width}, t), out = c.output({batch.tokens, a.heads * a.dim}, t);
  int lse = c.output({a.heads, batch.tokens}, DType::f32), dout = c.random({batch.tokens, a.heads * a.dim}, t);
  int delta = c.output({a.heads, batch.tokens}, DType::f32), dqkv = c.output({batch.tokens, width}, t);
  int angles = is_rotated ? c.random({batch.tokens, a.dim}, DType::f32) : Case::none();
  const int64_t before = cuda::num_ragged_cudnn_calls(), before_sm90 = cuda::num_sm90_attention_calls();
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    RaggedBatch b = make_batch(a, batch, at);
    AttentionForwardArgs forward;
    forward.shape = shape, forward.batch = &b, forward.qkv = at(qkv), forward.out = at(out), forward.lse = at(lse);
    table.attention_forward(s, forward);
    AttentionBackwardArgs args;
    args.shape = shape, args.batch = &b, args.qkv = at(qkv), args.out = at(out), args.lse = at(lse);
    args.dout = at(dout), args.delta = at(delta), args.dqkv = at(dqkv);
    rotated_attention_backward(table, s, {args, at(angles)});
  });
  c.expect_close(dqkv, "dqkv", t == DType::f32 ? 5e-5 : 2 * limit_of(t));
  expect_cudnn(c, t, a, before, 2);  // one forward, one backward
  expect_sm90(c, t, a, before_sm90, 2);
}

// Forward and backward on packed rows.
void test_packed(DType t, const AttentionCase& a) {
  if (!wants(a.equal_lengths ? "attention_equal" : a.is_training ? "attention_documents" : "attention")) return;
  AttentionShape shape = make_shape(a);
  int64_t width = (a.heads + 2 * a.kv_heads) * a.dim;
  Case c("attention_forward", t, text_of(a));
  BatchHandles batch = add_batch(c, a, a.lengths);
  int qkv = c.random({batch.tokens, width}, t), out = c.output({batch.tokens, a.heads * a.dim}, t);
  int lse = c.output({a.heads, batch.tokens}, DType::f32);
  int64_t before = cuda::num_ragged_cudnn_calls(), before_sm90 = cuda::num_sm90_attention_calls();
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    RaggedBatch b = make_batch(a, batch, at);
    AttentionForwardArgs args;
    args.shape = shape, args.batch = &b, args.qkv = at(qkv), args.out = at(out), args.lse = at(lse);
    table.attention_forward(s, args);
  });
  c.expect_close(out, "out", limit_of(t));
  c.expect_close(lse, "lse", t == DType::f32 ? 1e-5 : 1e-4);
  expect_cudnn(c, t, a, before, 2);  // run() calls twice
  expect_sm90(c, t, a, before_sm90, 2);

  test_backward(t, a, false);
}

// A pass over documents is captured with those of one batch and replayed with those of others.
void test_captured(DType t) {
  if (!wants("attention_captured")) return;
  const std::vector<std::vector<int32_t>> batches = {{300, 1, 77, 129, 200}, {1, 706, 0, 0, 0}, {60, 347, 300, 0, 0}};
  AttentionCase a{batches[0], 8, 2, 64, 0};
  a.is_training = true;
  const AttentionShape shape = make_shape(a);
  const int64_t width = (a.heads + 2 * a.kv_heads) * a.dim;
  Case c("attention_captured", t, text_of(a));
  c.skip_determinism();
  BatchHandles batch = add_batch(c, a, a.lengths);
  batch.max_query = batch.tokens;
  std::vector<int> offsets, outs, gradients;
  for (const std::vector<int32_t>& lengths : batches) {
    std::vector<int32_t> from = {0};
    for (int32_t length : lengths) from.push_back(from.back() + length);
    offsets.push_back(c.integers({static_cast<int64_t>(from.size())}, from));
    outs.push_back(c.output({batch.tokens, a.heads * a.dim}, t));
    gradients.push_back(c.output({batch.tokens, width}, t));
  }
  int qkv = c.random({batch.tokens, width}, t), dout = c.random({batch.tokens, a.heads * a.dim}, t);
  int out = c.output({batch.tokens, a.heads * a.dim}, t), dqkv = c.output({batch.tokens, width}, t);
  int lse = c.output({a.heads, batch.tokens}, DType::f32), delta = c.output({a.heads, batch.tokens}, DType::f32);
  int64_t before = cuda::num_ragged_cudnn_calls(), replays = 0;
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    RaggedBatch b = make_batch(a, batch, at);
    AttentionForwardArgs forward;
    forward.shape = shape, forward.batch = &b, forward.qkv = at(qkv), forward.out = at(out), forward.lse = at(lse);
    AttentionBackwardArgs args;
    args.shape = shape, args.batch = &b, args.qkv = at(qkv), args.out = at(out), args.lse = at(lse);
    args.dout = at(dout), args.delta = at(delta), args.dqkv = at(dqkv);
    core::DeviceRuntime& device = core::runtime(s.device);
    auto copy = [&](const Tensor& from, const Tensor& to) {
      device.copy_within(to.raw(), from.raw(), from.bytes(), s);
    };
    core::RepeatedWork pass;
    for (size_t i = 0; i < batches.size(); ++i) {
      copy(at(offsets[i]), b.offsets);
      pass.run(s, [&] {
        table.attention_forward(s, forward);
        table.attention_backward(s, args);
      });
      copy(at(out), at(outs[i]));
      copy(at(dqkv), at(gradients[i]));
    }
    device.synchronize(s);
    replays = pass.num_replays();
  });
  const double limit = limit_of(t);
  for (size_t i = 0; i < batches.size(); ++i) {
    c.expect_close(outs[i], fmt::format("out {}", i).c_str(), limit);
    c.expect_close(gradients[i], fmt::format("dqkv {}", i).c_str(), 2 * limit);
  }
  c.expect_true(replays == 2, "2 replays");
  expect_cudnn(c, t, a, before, 4);  // called as they are, then captured
}

void run_forward(const KernelTable& table, Stream& s, const AttentionCase& a, const RaggedBatch& batch,
                 const core::Tensor& qkv, const core::Tensor& out, const core::Tensor& lse) {
  AttentionForwardArgs args;
  args.shape = make_shape(a), args.batch = &batch, args.qkv = qkv, args.out = out, args.lse = lse;
  table.attention_forward(s, args);
}

// Scores that grow by far more than an exponential holds after the block on the diagonal, and a key that is NaN: what
// rows saw before is scaled down, and those that see the key are NaN.
void test_steep() {
  if (!wants("attention_steep")) return;
  const AttentionCase a{{385, 385}, 4, 2, 64, 0, 0, 0, true};
  const int64_t width = (a.heads + 2 * a.kv_heads) * a.dim;
  for (const bool has_nan : {false, true}) {
    Case c("attention_steep", DType::bf16, text_of(a) + (has_nan ? " NaN" : ""));
    BatchHandles batch = add_batch(c, a, a.lengths);
    std::vector<float> values(static_cast<size_t>(batch.tokens * width));
    base::CounterRng rng{9, 1};
    for (size_t i = 0; i < values.size(); ++i) values[i] = 40 * rng.uniform(i) - 20;
    if (has_nan) values[static_cast<size_t>(100 * width + a.heads * a.dim)] = NAN;  // a key of head 0, token 100
    int qkv = c.floats({batch.tokens, width}, values, DType::bf16);
    int out = c.output({batch.tokens, a.heads * a.dim}, DType::bf16),
        lse = c.output({a.heads, batch.tokens}, DType::f32);
    bool later_are_nan = true, earlier_are_not = true;
    c.skip_determinism();  // which compares numbers
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      run_forward(table, s, a, make_batch(a, batch, at), at(qkv), at(out), at(lse));
      const std::vector<float> results = core::to_host_floats(at(lse));  // head 0 first
      for (int64_t i = 0; i < batch.tokens; ++i) {
        const bool is_nan = std::isnan(results[static_cast<size_t>(i)]), sees = i >= 100 && i < 385;
        (sees ? later_are_nan : earlier_are_not) &= is_nan == sees;
      }
    });
    if (has_nan) {
      c.expect_true(later_are_nan, "NaN from there on");
      c.expect_true(earlier_are_not, "and not before");
    } else {
      c.expect_close(out, "out", 8e-3);
      c.expect_close(lse, "lse", 1e-4);
    }
  }
}

// Damaged numbers must not end as zeros: a sequence whose keys are NaN has results that are.
void test_nan(DType t) {
  if (!wants("attention_nan")) return;
  const AttentionCase a{{40}, 2, 1, 32, 0};
  const int64_t width = (a.heads + 2 * a.kv_heads) * a.dim;
  Case c("attention_nan", t, text_of(a));
  BatchHandles batch = add_batch(c, a, a.lengths);
  int qkv = c.floats({batch.tokens, width}, std::vector<float>(static_cast<size_t>(batch.tokens * width), NAN), t);
  int out = c.output({batch.tokens, a.heads * a.dim}, t), lse = c.output({a.heads, batch.tokens}, DType::f32);
  bool all_nan = true;
  c.skip_determinism();  // which compares numbers
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    run_forward(table, s, a, make_batch(a, batch, at), at(qkv), at(out), at(lse));
    for (float x : core::to_host_floats(at(out))) all_nan = all_nan && std::isnan(x);
  });
  c.expect_true(all_nan, "all NaN");
}

// Queries against a paged cache.
void test_paged(DType t, const AttentionCase& a, const std::vector<int32_t>& contexts, int64_t block_size) {
  if (!wants("attention_paged")) return;
  Case c("attention_paged", t, fmt::format("{} block {}", text_of(a), block_size));
  BatchHandles batch = add_batch(c, a, contexts);
  int64_t sequences = static_cast<int64_t>(contexts.size()), max_blocks = 1, next = 0;
  for (int32_t context : contexts) max_blocks = std::max(max_blocks, (context + block_size - 1) / block_size);
  int64_t num_blocks = sequences * max_blocks + 3;
  std::vector<int32_t> tables(static_cast<size_t>(sequences * max_blocks));
  for (int32_t& b : tables) b = static_cast<int32_t>((next += 7) % num_blocks);
  int qkv = c.random({batch.tokens, (a.heads + 2 * a.kv_heads) * a.dim}, t),
      block_tables = c.integers({sequences, max_blocks}, tables);
  int keys = c.random({num_blocks, block_size, a.kv_heads, a.dim}, t),
      values = c.random({num_blocks, block_size, a.kv_heads, a.dim}, t);
  int out = c.output({batch.tokens, a.heads * a.dim}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    RaggedBatch b = make_batch(a, batch, at);
    AttentionForwardArgs args;
    args.shape = make_shape(a), args.batch = &b, args.qkv = at(qkv), args.out = at(out);
    args.cache = core::kv_layer_of(at(keys), at(values)), args.block_tables = at(block_tables);
    table.attention_forward(s, args);
  });
  c.expect_close(out, "out", limit_of(t));
}

}  // namespace

void test_attention() {
  std::vector<AttentionCase> cases = {{{5, 17}, 4, 2, 16, 0},
                                      {{70}, 2, 1, 64, 20},
                                      {{33, 1, 40}, 4, 4, 8, 0, 0.2f, 3},
                                      {{100, 130, 7}, 8, 2, 64, 0},
                                      {{300}, 6, 2, 128, 0},
                                      {{257, 64}, 4, 1, 96, 100},
                                      {{150}, 2, 2, 256, 0},
                                      {{65, 129}, 4, 2, 80, 33},
                                      {{50, 9}, 3, 1, 20, 0},
                                      {{200, 1, 1, 90}, 12, 12, 64, 0, 0.1f, 5},
                                      {{140}, 5, 5, 33, 0},
                                      {{90}, 14, 2, 64, 0},
                                      {{70, 130}, 4, 2, 64, 2147483647},  // windows that an int or its sums do not hold
                                      {{66}, 2, 1, 32, 4294967295}};
  std::vector<AttentionCase> equal = {{{130, 130}, 4, 2, 64, 0, 0, 0, true},
                                      {{128, 128}, 4, 4, 64, 0, 0, 0, true},
                                      {{256, 256, 256}, 8, 2, 64, 0, 0, 0, true},
                                      {{320}, 4, 1, 128, 0, 0, 0, true},
                                      {{200, 200}, 3, 3, 64, 0, 0, 0, true},
                                      {{1, 1, 1}, 4, 2, 64, 0, 0, 0, true},
                                      {{63}, 2, 1, 64, 0, 0, 0, true},
                                      {{513, 513}, 14, 2, 64, 0, 0, 0, true},
                                      {{400}, 25, 25, 64, 400, 0, 0, true}};
  std::vector<AttentionCase> rotated = {{{130, 130}, 4, 2, 64, 0, 0, 0, true},
                                        {{1, 1, 1}, 4, 2, 64, 0, 0, 0, true},
                                        {{193}, 6, 6, 64, 0, 0, 0, true},
                                        {{100, 100}, 4, 1, 128, 0, 0, 0, true}};
  // Odd lengths, one of a single token, an empty one, tokens of padding behind the last, bounds that are too high.
  auto documents = [](std::vector<int32_t> lengths, int64_t heads, int64_t kv_heads, int64_t dim, int64_t padding = 0) {
    return AttentionCase{std::move(lengths), heads, kv_heads, dim, 0, 0, padding, false, true};
  };
  std::vector<AttentionCase> training = {documents({300, 1, 77, 129, 200}, 4, 4, 64),
                                         documents({511, 0, 65, 1, 2, 263, 0}, 8, 2, 64, 9),
                                         documents({1, 640, 127, 128}, 8, 2, 128),
                                         documents({257, 300}, 4, 1, 96, 1),
                                         documents({700}, 3, 3, 128, 130),
                                         documents({5, 401, 333}, 14, 2, 64)};
  if (test_options().small) cases.resize(4), training.resize(2), equal.resize(1), rotated.resize(1);
  for (DType t : kFormats) {
    for (const AttentionCase& a : cases) test_packed(t, a);
    for (const AttentionCase& a : training) test_packed(t, a);
    if (t != DType::f32) test_captured(t);
    test_nan(t);
    if (t == DType::bf16) test_steep();
    test_paged(t, {{1, 1, 3}, 4, 2, 16, 0}, {10, 33, 3}, 16);
    test_paged(t, {{1, 20, 1}, 8, 2, 64, 0, 0, 2}, {100, 90, 1}, 16);
    test_paged(t, {{1, 5}, 4, 4, 128, 40}, {200, 70}, 32);
    if (!test_options().small || t == DType::bf16) {  // small: what our kernels take, not cuDNN's
      for (const AttentionCase& a : equal) test_packed(t, a);
      for (const AttentionCase& a : rotated) test_backward(t, a, true);
    }
    if (!test_options().small) {
      test_paged(t, {{1, 1, 1, 1}, 16, 2, 128, 0}, {1000, 513, 64, 3000}, 16);
    }
  }
}

}  // namespace sinter::kernels::cuda_test
