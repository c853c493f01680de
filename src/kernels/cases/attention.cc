// Cases: attention over ragged batches, windows, grouped heads, paged keys, dropout; equal lengths and documents of
// training batches, which a device may give to other kernels.
#include "kernels/cases/attention.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "kernels/fused.h"

namespace sinter::kernels::cases {

AttentionShape Attention::shape() const {
  AttentionShape s;
  s.num_heads = heads, s.num_kv_heads = kv_heads, s.head_dim = dim, s.window = window;
  s.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  s.dropout = dropout, s.key = {3, 4};
  return s;
}

std::string Attention::text() const {
  std::string text;
  for (int32_t l : lengths) text += (text.empty() ? "" : "_") + std::to_string(l);
  return fmt::format("{}_tokens_{}_over_{}x{}{}{}{}", text, heads, kv_heads, dim,
                     window ? fmt::format("_window_{}", window) : "", dropout > 0 ? "_dropout" : "",
                     padding ? "_padded" : "");
}

BatchHandles add_batch(Case& c, const Attention& a, const std::vector<int32_t>& contexts) {
  std::vector<int32_t> offsets = {0}, sequence_of;
  for (size_t s = 0; s < a.lengths.size(); ++s) {
    offsets.push_back(offsets.back() + a.lengths[s]);
    sequence_of.insert(sequence_of.end(), static_cast<size_t>(a.lengths[s]), static_cast<int32_t>(s));
  }
  sequence_of.insert(sequence_of.end(), static_cast<size_t>(a.padding), -1);
  const auto sequences = static_cast<int64_t>(a.lengths.size()), tokens = static_cast<int64_t>(sequence_of.size());
  return {c.integers({sequences + 1}, offsets),
          c.integers({sequences}, contexts),
          c.integers({tokens}, sequence_of),
          tokens,
          *std::max_element(a.lengths.begin(), a.lengths.end()),
          *std::max_element(contexts.begin(), contexts.end())};
}

RaggedBatch make_batch(const Attention& a, const BatchHandles& h, const Case::At& at) {
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

AttentionWitness& attention_witness() {
  static AttentionWitness witness;
  return witness;
}

namespace {

void begin_watch() {
  if (attention_witness().begin) attention_witness().begin();
}
void expect_kernel(Case& c, DType t, const Attention& a, int64_t calls) {
  if (attention_witness().expect) attention_witness().expect(c, t, a, calls);
}

void run_forward(const KernelTable& table, Stream& s, const Attention& a, const RaggedBatch& batch, const Tensor& qkv,
                 const Tensor& out, const Tensor& lse) {
  AttentionForwardArgs args;
  args.shape = a.shape(), args.batch = &batch, args.qkv = qkv, args.out = out, args.lse = lse;
  table.attention_forward(s, args);
}

void forward(Case& c, DType t, const Attention& a) {
  const BatchHandles batch = add_batch(c, a, a.lengths);
  const int qkv = c.random({batch.tokens, a.width()}, t), out = c.output({batch.tokens, a.heads * a.dim}, t),
            lse = c.output({a.heads, batch.tokens}, DType::f32);
  begin_watch();
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    run_forward(table, s, a, make_batch(a, batch, at), at(qkv), at(out), at(lse));
  });
  c.expect_close(out, "out", Result::attention);
  c.expect_close(lse, "lse", Result::log_sum_exp, t);
  expect_kernel(c, t, a, 2);  // run() calls twice
}

// The gradient of packed rows, from the tables' own out and lse; or that of the rows before their rotation.
void backward(Case& c, DType t, const Attention& a, bool is_rotated) {
  // cuDNN's default backward and ours for Hopper add dQ by atomics; the deterministic switch has its own algorithm.
  if (a.equal_lengths || a.is_training) c.bits_may_differ();
  const BatchHandles batch = add_batch(c, a, a.lengths);
  const int qkv = c.random({batch.tokens, a.width()}, t), out = c.output({batch.tokens, a.heads * a.dim}, t),
            lse = c.output({a.heads, batch.tokens}, DType::f32), dout = c.random({batch.tokens, a.heads * a.dim}, t),
            delta = c.output({a.heads, batch.tokens}, DType::f32), dqkv = c.output({batch.tokens, a.width()}, t),
            angles = is_rotated ? c.random({batch.tokens, a.dim}, DType::f32) : Case::none();
  begin_watch();
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    const RaggedBatch b = make_batch(a, batch, at);
    run_forward(table, s, a, b, at(qkv), at(out), at(lse));
    AttentionBackwardArgs args;
    args.shape = a.shape(), args.batch = &b, args.qkv = at(qkv), args.out = at(out), args.lse = at(lse);
    args.dout = at(dout), args.delta = at(delta), args.dqkv = at(dqkv);
    rotated_attention_backward(table, s, {args, at(angles)});
  });
  c.expect_close(dqkv, "dqkv", Result::attention_gradient);
  expect_kernel(c, t, a, 2);  // one forward, one backward
}

void add_attention(const std::string& kind, DType t, const Attention& a) {
  add(kind + "Forward", t, a.text(), a.size, [=](Case& c) { forward(c, t, a); });
  add(kind + "Backward", t, a.text(), a.size, [=](Case& c) { backward(c, t, a, false); });
}

// Scores that grow by far more than an exponential holds after the block on the diagonal, and a key that is NaN: what
// rows saw before is scaled down, and those that see the key are NaN.
void steep(Case& c, bool has_nan) {
  const Attention a{.lengths = {385, 385}, .heads = 4, .kv_heads = 2, .dim = 64, .equal_lengths = true};
  const BatchHandles batch = add_batch(c, a, a.lengths);
  std::vector<float> values(static_cast<size_t>(batch.tokens * a.width()));
  const base::CounterRng rng{9, 1};
  for (size_t i = 0; i < values.size(); ++i) values[i] = 40 * rng.uniform(i) - 20;
  if (has_nan) values[static_cast<size_t>(100 * a.width() + a.heads * a.dim)] = NAN;  // a key of head 0, token 100
  const int qkv = c.floats({batch.tokens, a.width()}, values, DType::bf16),
            out = c.output({batch.tokens, a.heads * a.dim}, DType::bf16),
            lse = c.output({a.heads, batch.tokens}, DType::f32);
  bool later_are_nan = true, earlier_are_not = true;
  c.bits_may_differ();
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
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
    c.expect_close(out, "out", Result::attention);
    c.expect_close(lse, "lse", Result::log_sum_exp, DType::bf16);
  }
}

// Damaged numbers must not end as zeros: a sequence whose keys are NaN has results that are.
void all_nan(Case& c, DType t) {
  const Attention a{.lengths = {40}, .heads = 2, .kv_heads = 1, .dim = 32};
  const BatchHandles batch = add_batch(c, a, a.lengths);
  const int qkv = c.floats({batch.tokens, a.width()},
                           std::vector<float>(static_cast<size_t>(batch.tokens * a.width()), NAN), t),
            out = c.output({batch.tokens, a.heads * a.dim}, t), lse = c.output({a.heads, batch.tokens}, DType::f32);
  bool all = true;
  c.bits_may_differ();
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    run_forward(table, s, a, make_batch(a, batch, at), at(qkv), at(out), at(lse));
    for (float x : core::to_host_floats(at(out))) all = all && std::isnan(x);
  });
  c.expect_true(all, "all NaN");
}

// Queries against a paged cache.
struct Paged {
  Attention a;
  std::vector<int32_t> contexts;
  int64_t block_size;
};

void paged(Case& c, DType t, const Paged& p) {
  const Attention& a = p.a;
  const BatchHandles batch = add_batch(c, a, p.contexts);
  const auto sequences = static_cast<int64_t>(p.contexts.size());
  int64_t max_blocks = 1, next = 0;
  for (int32_t context : p.contexts) max_blocks = std::max(max_blocks, (context + p.block_size - 1) / p.block_size);
  const int64_t num_blocks = sequences * max_blocks + 3;
  std::vector<int32_t> tables(static_cast<size_t>(sequences * max_blocks));
  for (int32_t& b : tables) b = static_cast<int32_t>((next += 7) % num_blocks);
  const int qkv = c.random({batch.tokens, a.width()}, t), block_tables = c.integers({sequences, max_blocks}, tables),
            keys = c.random({num_blocks, p.block_size, a.kv_heads, a.dim}, t),
            values = c.random({num_blocks, p.block_size, a.kv_heads, a.dim}, t),
            out = c.output({batch.tokens, a.heads * a.dim}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    const RaggedBatch b = make_batch(a, batch, at);
    AttentionForwardArgs args;
    args.shape = a.shape(), args.batch = &b, args.qkv = at(qkv), args.out = at(out);
    args.cache = core::kv_layer_of(at(keys), at(values)), args.block_tables = at(block_tables);
    table.attention_forward(s, args);
  });
  c.expect_close(out, "out", Result::attention);
}

constexpr Size kSmall = Size::small, kMedium = Size::medium, kLarge = Size::large;

struct Heads {
  int64_t heads, kv_heads, dim;
};
Attention plain(std::vector<int32_t> lengths, const Heads& h, int64_t window, Size size, float dropout = 0,
                int64_t padding = 0) {
  return {std::move(lengths), h.heads, h.kv_heads, h.dim, window, dropout, padding, false, false, size};
}
Attention equal(std::vector<int32_t> lengths, const Heads& h, Size size, int64_t window = 0) {
  return {std::move(lengths), h.heads, h.kv_heads, h.dim, window, 0, 0, true, false, size};
}
// Odd lengths, one of a single token, an empty one, tokens of padding behind the last, bounds that are too high.
Attention documents(std::vector<int32_t> lengths, const Heads& h, Size size, int64_t padding = 0) {
  return {std::move(lengths), h.heads, h.kv_heads, h.dim, 0, 0, padding, false, true, size};
}

void register_packed(DType t) {
  for (const Attention& a :
       {plain({5, 17}, {4, 2, 16}, 0, kSmall), plain({70}, {2, 1, 64}, 20, kSmall),
        plain({33, 1, 40}, {4, 4, 8}, 0, kSmall, 0.2f, 3), plain({100, 130, 7}, {8, 2, 64}, 0, kSmall),
        plain({300}, {6, 2, 128}, 0, kLarge), plain({257, 64}, {4, 1, 96}, 100, kLarge),
        plain({150}, {2, 2, 256}, 0, kMedium), plain({65, 129}, {4, 2, 80}, 33, kMedium),
        plain({50, 9}, {3, 1, 20}, 0, kMedium), plain({200, 1, 1, 90}, {12, 12, 64}, 0, kLarge, 0.1f, 5),
        plain({140}, {5, 5, 33}, 0, kMedium), plain({90}, {14, 2, 64}, 0, kMedium),
        // windows that an int or its sums do not hold
        plain({70, 130}, {4, 2, 64}, 2147483647, kMedium), plain({66}, {2, 1, 32}, 4294967295, kMedium),
        // edges of the CPU's tiles
        plain({1, 3, 63, 64, 65}, {2, 2, 64}, 0, kMedium), plain({100, 7}, {4, 2, 48}, 0, kMedium, 0, 3),
        plain({17, 130}, {3, 1, 80}, 0, kMedium, 0, 1), plain({70}, {2, 1, 96}, 0, kMedium),
        plain({33, 66}, {4, 1, 128}, 0, kMedium, 0, 2), plain({70}, {1, 1, 256}, 0, kMedium),
        plain({65, 2}, {2, 2, 20}, 0, kMedium), plain({40}, {3, 1, 7}, 0, kMedium, 0, 1),
        plain({70}, {2, 1, 64}, 1, kMedium), plain({180, 20}, {4, 2, 32}, 50, kMedium),
        plain({129}, {2, 2, 16}, 64, kMedium), plain({100, 31}, {2, 1, 64}, 0, kMedium, 0.2f, 2),
        plain({130}, {2, 2, 40}, 30, kMedium, 0.5f)}) {
    add_attention("Attention", t, a);
  }
  const Size first = is_cuda() && t == DType::f32 ? kMedium : kSmall,
             second = is_cuda() || t == DType::bf16 ? kSmall : kLarge;  // seconds of plain loops
  for (const Attention& a :
       {documents({300, 1, 77, 129, 200}, {4, 4, 64}, first),
        documents({511, 0, 65, 1, 2, 263, 0}, {8, 2, 64}, second, 9),
        documents({1, 640, 127, 128}, {8, 2, 128}, kLarge), documents({257, 300}, {4, 1, 96}, kLarge, 1),
        documents({700}, {3, 3, 128}, kLarge, 130), documents({5, 401, 333}, {14, 2, 64}, kLarge)}) {
    add_attention("DocumentAttention", t, a);
  }
}

void register_equal_lengths(DType t) {
  const Size first = t == DType::bf16 ? kSmall : kMedium;  // small: what our kernels take, not cuDNN's
  for (const Attention& a :
       {equal({130, 130}, {4, 2, 64}, first), equal({128, 128}, {4, 4, 64}, kMedium),
        equal({256, 256, 256}, {8, 2, 64}, kLarge), equal({320}, {4, 1, 128}, kLarge),
        equal({200, 200}, {3, 3, 64}, kLarge), equal({1, 1, 1}, {4, 2, 64}, kMedium), equal({63}, {2, 1, 64}, kMedium),
        equal({513, 513}, {14, 2, 64}, kLarge), equal({400}, {25, 25, 64}, kLarge, 400)}) {
    add_attention("EqualLengthsAttention", t, a);
  }
  for (const Attention& a : {equal({130, 130}, {4, 2, 64}, first), equal({1, 1, 1}, {4, 2, 64}, kMedium),
                             equal({193}, {6, 6, 64}, kMedium), equal({100, 100}, {4, 1, 128}, kMedium)}) {
    add("RotatedAttentionBackward", t, a.text(), a.size, [=](Case& c) { backward(c, t, a, true); });
  }
}

void register_paged(DType t) {
  for (const Paged& p : {Paged{plain({1, 1, 3}, {4, 2, 16}, 0, kSmall), {10, 33, 3}, 16},
                         Paged{plain({1, 20, 1}, {8, 2, 64}, 0, kSmall, 0, 2), {100, 90, 1}, 16},
                         Paged{plain({1, 5}, {4, 4, 128}, 40, kSmall), {200, 70}, 32},
                         Paged{plain({1, 1, 1, 1}, {16, 2, 128}, 0, kLarge), {1000, 513, 64, 3000}, 16}}) {
    add("PagedAttention", t,
        fmt::format("{}_context_{}_blocks_of_{}", p.a.text(), *std::max_element(p.contexts.begin(), p.contexts.end()),
                    p.block_size),
        p.a.size, [=](Case& c) { paged(c, t, p); });
  }
}

}  // namespace

void register_attention_cases() {
  for (DType t : kFormats) {
    register_packed(t);
    register_equal_lengths(t);
    register_paged(t);
    add_claim("Attention", fmt::format("{}_KeysThatAreNaNGiveNaN", base::dtype_name(t)), kSmall,
              [=](Case& c) { all_nan(c, t); });
  }
  add_claim("Attention", "bf16_SteepScores_EqualTheReference", kSmall, [](Case& c) { steep(c, false); });
  add_claim("Attention", "bf16_RowsThatSeeAKeyThatIsNaNAreNaNAndNoOthers", kSmall, [](Case& c) { steep(c, true); });
}

}  // namespace sinter::kernels::cases
