// Cases: kernels of decoding: products of few rows, attention of few queries over pages, choosing tokens.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "core/kv_format.h"
#include "kernels/cases/attention.h"
#include "kernels/fused.h"

namespace sinter::kernels::cases {
namespace {

struct Product {
  int64_t m, n, k;
  Size size;
};
std::string text_of(const Product& p) { return fmt::format("{}x{}x{}", p.m, p.n, p.k); }

enum class Extra { none, bias_and_addend, f32_result };

void few_rows(Case& c, DType t, const Product& p, Extra extra) {
  const bool has = extra == Extra::bias_and_addend;
  const int a = c.random({p.m, p.k}, t), b = c.random({p.n, p.k}, t, 1.0f / std::sqrt(static_cast<float>(p.k))),
            y = c.output({p.m, p.n}, extra == Extra::f32_result ? DType::f32 : t), bias = has ? c.random({p.n}, t) : -1,
            addend = has ? c.random({p.m, p.n}, t) : -1;
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    MatmulArgs args;
    args.a = at(a), args.b.data = at(b), args.c = at(y), args.bias = at(bias), args.addend = at(addend);
    args.transpose_b = true;
    table.matmul(s, args);
  });
  c.expect_close(y, "c", has ? Result::rounded_sum : Result::product);
}

void few_rows_gated(Case& c, DType t, const Product& p) {
  const int a = c.random({p.m, p.k}, t), b = c.random({2 * p.n, p.k}, t, 1.0f / std::sqrt(static_cast<float>(p.k))),
            y = c.output({p.m, p.n}, t), pre = c.output({p.m, 2 * p.n}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    FusedMatmulArgs args;
    args.product.a = at(a), args.product.b.data = at(b), args.product.c = at(y), args.product.transpose_b = true;
    args.activation = spec::Activation::silu, args.pre_activation = at(pre), args.gated = true;
    fused_matmul(table, s, args);
  });
  c.expect_close(pre, "pre", Result::product);
  c.expect_close(y, "c", Result::fused_product);
}

// Weights in fp8 in three parts, as Q, K and V of a file; a scale for a row, or for each `group` columns of it.
void few_rows_fp8(Case& c, DType t, const Product& p, int64_t group) {
  const int64_t n = p.n, k = p.k;
  const base::CounterRng rng{9, static_cast<uint64_t>(p.m + n + k)};
  std::vector<int32_t> codes(static_cast<size_t>(n * k / 4));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<int32_t>(rng.bits(i) & 0xbfbfbfbfu);  // no NaN
  const int64_t groups = (k + group - 1) / group;
  const int a = c.random({p.m, k}, t), w = c.integers({n * k / 4}, codes),
            scales = c.uniform({n, groups}, DType::f32, 0.01f, 0.02f), y = c.output({p.m, n}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    auto blocks = std::make_shared<core::WeightBlocks>();
    blocks->rows = n, blocks->columns = k;
    for (int64_t first = 0, rows = n / 2; first < n; first += rows, rows = n / 4) {
      core::WeightPart part{.format = base::WeightFormat::fp8_e4m3, .rows = rows, .group = group};
      part.data = Tensor::view_of(at(w).data<char>() + first * k, {1, rows * k}, DType::u8, at(w).device());
      part.scales = at(scales).slice(first, rows).reshape({1, rows, groups});
      part.global_scale = first == 0 ? 1.0f : 0.5f;
      blocks->parts.push_back(part);
    }
    MatmulArgs args;
    args.a = at(a), args.c = at(y), args.transpose_b = true;
    args.b.blocks = blocks;
    table.matmul(s, args);
  });
  c.expect_close(y, "c", Result::rounded);
}

struct Heads {
  int64_t m, k, dim, heads, kv_heads;
  Size size;
};

void few_rows_rotated(Case& c, DType t, const Heads& h) {
  const int64_t n = (h.heads + 2 * h.kv_heads) * h.dim;
  const int a = c.random({h.m, h.k}, t), b = c.random({n, h.k}, t, 1.0f / std::sqrt(static_cast<float>(h.k))),
            y = c.output({h.m, n}, t), angles = c.uniform({h.m, h.dim}, DType::f32, -1, 1);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    rotated_matmul(
        table, s,
        {.product = {.a = at(a), .b = {.data = at(b)}, .c = at(y), .transpose_b = true},
         .rope = {.num_rotated = h.heads + h.kv_heads, .head_dim = h.dim, .x = at(y), .cos_sin = at(angles)}});
  });
  c.expect_close(y, "c", Result::fused_product);
}

void register_few_rows(DType t) {
  constexpr Size kSmall = Size::small, kMedium = Size::medium, kLarge = Size::large;
  for (const Product& p : {Product{1, 32, 80, kSmall}, Product{9, 48, 208, kSmall}, Product{1, 256, 512, kMedium},
                           Product{3, 48, 80, kMedium}, Product{8, 4096, 4096, kLarge}, Product{9, 320, 208, kMedium},
                           Product{16, 1024, 2064, kLarge}, Product{5, 64, 14336, kMedium}}) {
    const std::string shape = text_of(p);
    add("FewRowsMatmul", t, shape, p.size, [=](Case& c) { few_rows(c, t, p, Extra::none); });
    add("FewRowsMatmul", t, shape + "_bias_addend", p.size,
        [=](Case& c) { few_rows(c, t, p, Extra::bias_and_addend); });
    add("FewRowsMatmul", t, shape + "_to_f32", p.size, [=](Case& c) { few_rows(c, t, p, Extra::f32_result); });
    add("FewRowsMatmul", t, shape + "_gated", p.size, [=](Case& c) { few_rows_gated(c, t, p); });
  }
  for (auto [p, group] : {std::pair{Product{1, 256, 512, kSmall}, 512}, {Product{11, 128, 1024, kSmall}, 128}}) {
    add("FewRowsMatmul", t, fmt::format("{}_fp8_groups_of_{}", text_of(p), group), p.size,
        [t, p = p, group = group](Case& c) { few_rows_fp8(c, t, p, group); });
  }
  for (const Heads& h :
       {Heads{1, 512, 128, 4, 2, kSmall}, Heads{7, 96, 64, 3, 1, kSmall}, Heads{16, 256, 16, 4, 4, kSmall}}) {
    add("FewRowsMatmul", t, fmt::format("{}x{}_to_{}_and_{}x{}_rotated", h.m, h.k, h.heads, 2 * h.kv_heads, h.dim),
        h.size, [=](Case& c) { few_rows_rotated(c, t, h); });
  }
}

struct Pages {
  std::vector<int32_t> queries, contexts;
  int64_t heads, kv_heads, dim, window = 0, block_size = 16, padding = 0;
  bool heads_first = true, is_fp8 = false;
  Size size = Size::small;
  bool is_int8 = false;

  int64_t table_width() const {
    int64_t width = 1;
    for (int32_t context : contexts) width = std::max(width, (context + block_size - 1) / block_size);
    return width;
  }
};

// Blocks of all sequences in a scattered order, and the slot of every token.
struct Layout {
  std::vector<int32_t> offsets{0}, tables, slots;
};

Layout layout_of(const Pages& p) {
  Layout l;
  const auto S = static_cast<int64_t>(p.queries.size());
  const int64_t width = p.table_width(), step = std::gcd(int64_t{7}, S * width) == 1 ? 7 : 1;
  for (int64_t s = 0; s < S; ++s) {
    l.offsets.push_back(l.offsets.back() + p.queries[static_cast<size_t>(s)]);
    for (int64_t b = 0; b < width; ++b) l.tables.push_back(static_cast<int32_t>((s * width + b) * step % (S * width)));
    for (int32_t j = 0; j < p.contexts[static_cast<size_t>(s)]; ++j) {
      const int32_t block = l.tables[static_cast<size_t>(s * width + j / p.block_size)];
      l.slots.push_back(block * static_cast<int32_t>(p.block_size) + j % static_cast<int32_t>(p.block_size));
    }
  }
  return l;
}

// Keys and values are written by kv_write of a batch of all tokens, then read by a batch of the last queries; where
// these are all tokens, by the same batch.
void pages(Case& c, DType t, const Pages& p) {
  const Layout l = layout_of(p);
  const auto S = static_cast<int64_t>(p.queries.size()), total = static_cast<int64_t>(l.slots.size());
  const int64_t width = p.table_width(), num_blocks = S * width + 5;
  const int64_t T = l.offsets.back() + p.padding, W = (p.heads + 2 * p.kv_heads) * p.dim;
  const DType stored = p.is_fp8 ? DType::f8e4m3 : p.is_int8 ? DType::i8 : t;
  const int64_t row = core::kv_row_elements(stored, p.dim);
  const Shape cache_shape{num_blocks, p.block_size, p.kv_heads, p.dim};
  const int all = c.random({total, W}, t), slots_of_all = c.integers({total}, l.slots), qkv = c.random({T, W}, t),
            offset = c.integers({S + 1}, l.offsets), context = c.integers({S}, p.contexts),
            table_of = c.integers({S, width}, l.tables), out = c.output({T, p.heads * p.dim}, t),
            keys = c.random(cache_shape, t), key_scales = c.uniform({p.kv_heads}, DType::f32, 0.01f, 0.02f),
            value_scales = c.uniform({p.kv_heads}, DType::f32, 0.01f, 0.02f), values = c.random(cache_shape, t);
  if (attention_witness().begin) attention_witness().begin();
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    auto as_stored = [&](int handle) {
      const Tensor x = at(handle);
      return Tensor::view_of(x.raw(), {num_blocks, p.block_size, p.kv_heads, row}, stored, x.device());
    };
    core::KvLayer cache = core::kv_layer_of(as_stored(keys), as_stored(values));
    if (p.heads_first) cache.head_stride = p.block_size * row, cache.token_stride = row;
    if (p.is_fp8) cache.key_scales = at(key_scales), cache.value_scales = at(value_scales);
    table.kv_write(s, {p.heads, p.kv_heads, p.dim, at(all), at(slots_of_all), cache});
    RaggedBatch batch;
    batch.offsets = at(offset), batch.contexts = at(context);
    batch.num_tokens = T, batch.num_sequences = S;
    batch.max_query = *std::max_element(p.queries.begin(), p.queries.end());
    batch.max_context = width * p.block_size;
    batch.equal_lengths = core::has_equal_lengths(l.offsets, batch.max_query, T);
    batch.host_contexts = p.contexts;
    AttentionForwardArgs args;
    args.shape = {.num_heads = p.heads,
                  .num_kv_heads = p.kv_heads,
                  .head_dim = p.dim,
                  .window = p.window,
                  .scale = 1.0f / std::sqrt(static_cast<float>(p.dim))};
    args.batch = &batch, args.qkv = at(p.queries == p.contexts ? all : qkv), args.out = at(out);
    args.cache = cache, args.block_tables = at(table_of);
    table.attention_forward(s, args);
  });
  c.expect_close(out, "out", p.is_fp8 || p.is_int8 ? Result::fp8_cache : Result::decoding);
  // Prompts that are the whole batch may go past the pages.
  if (attention_witness().expect_pages && p.queries != p.contexts && !p.is_int8)
    attention_witness().expect_pages(c, *std::max_element(p.queries.begin(), p.queries.end()));
}

void register_pages(DType t) {
  const Pages all[] = {
      {{1, 1, 1}, {1, 100, 257}, 8, 2, 128},
      {{1, 2, 8, 3}, {33, 700, 512, 3}, 8, 2, 64, 0, 16, 3},
      {{1, 1}, {600, 90}, 4, 4, 96, 130, 32},
      {{4, 1}, {260, 61}, 16, 1, 256, 0, 16},
      {{1, 20, 1, 9}, {300, 20, 40, 900}, 8, 2, 128, 0, 16, 5},
      {{1, 8}, {300, 520}, 40, 2, 128, 64, 16, 0, false},
      {{1, 3}, {300, 77}, 4, 2, 80, 0, 7},
      {{1, 20}, {300, 520}, 8, 2, 128, 0, 16, 0, true, true},
      // fp8 and few queries: each head size, a window, pieces, padding.
      {{1, 4, 1}, {700, 513, 17}, 8, 2, 128, 0, 16, 2, true, true},
      {{1, 8}, {300, 520}, 8, 2, 64, 100, 16, 0, true, true},
      {{2, 1}, {290, 33}, 6, 3, 96, 0, 16, 0, true, true},
      {{1, 1}, {260, 600}, 4, 1, 256, 0, 32, 0, true, true},
      {{1, 2}, {40, 70}, 4, 2, 40, 0, 16, 0, true, true},
      // int8: the same again.
      {{1, 4, 1}, {700, 513, 17}, 8, 2, 128, 0, 16, 2, true, false, Size::small, true},
      {{1, 8, 100}, {300, 520, 130}, 6, 3, 96, 100, 16, 0, false, false, Size::small, true},
      {{1, 2}, {40, 70}, 4, 2, 33, 0, 7, 1, true, false, Size::small, true},
      // Prompts that have nothing in the cache before.
      {{256, 256}, {256, 256}, 8, 2, 64, 0, 16, 0, true, false, Size::medium},
      {{384}, {384}, 8, 2, 128, 0, 16, 0, true, false, Size::medium},
      {{2048}, {2048}, 8, 2, 128, 0, 16, 0, true, false, Size::large},
      // Chunks of prompts among rows that decode: grouped heads, windows, head sizes, a cache in fp8,
      // and more queries than a piece has.
      {{100, 1, 20, 70}, {230, 300, 45, 70}, 8, 2, 128, 0, 16, 3},
      {{64, 9, 65}, {300, 20, 129}, 4, 4, 96, 100, 32, 1},
      {{1, 90}, {40, 233}, 4, 2, 64, 0, 16, 0, false},
      {{90, 1}, {133, 5}, 4, 1, 256, 0, 16},
      {{130, 64}, {131, 200}, 8, 2, 128, 0, 16, 2, true, true},
      {{790, 1, 768}, {1000, 40, 769}, 2, 1, 16, 0, 16, 2},
      {{800, 2}, {900, 30}, 2, 1, 16, 200, 16},
      {{1700, 1, 800, 3, 64}, {4100, 900, 801, 50, 9000}, 8, 2, 128, 0, 16, 9, true, false, Size::large},
      {{1600}, {3200}, 32, 8, 128, 0, 16, 0, true, false, Size::large},
      {{1600}, {3200}, 8, 4, 256, 0, 16, 0, true, false, Size::large},
      {{1, 1}, {20000, 5000}, 8, 2, 128, 0, 16, 0, true, false, Size::large},
      {{1, 1}, {17000, 40}, 4, 1, 64, 3000, 16, 0, true, false, Size::large}};
  for (const Pages& p : all) {
    // The CPU's coded caches and its prompts have tests of their own (cpu/attention).
    if ((p.is_fp8 || p.is_int8 || p.queries == p.contexts) && !is_own_cuda()) continue;
    add("DecodeAttention", t,
        fmt::format("{}_sequences_of_at_most_{}_{}_over_{}x{}{}_blocks_of_{}{}{}", p.queries.size(),
                    *std::max_element(p.contexts.begin(), p.contexts.end()), p.heads, p.kv_heads, p.dim,
                    p.window ? fmt::format("_window_{}", p.window) : "", p.block_size,
                    p.heads_first ? "" : "_tokens_first",
                    p.is_fp8    ? "_fp8"
                    : p.is_int8 ? "_int8"
                                : ""),
        p.size, [=](Case& c) { pages(c, t, p); });
  }
}

// Rows of every kind: greedy, cut by top-k, top-p and min-p, under masks, with edits, and one that is not used.
void make_rows(int64_t rows, int64_t vocab, std::vector<SampleRow>& list, std::vector<LogitEdit>& edits) {
  for (int64_t r = 0; r < rows; ++r) {
    SampleRow row{.is_used = 1};
    const int64_t kind = r % 12;
    row.seed = 100 + static_cast<uint64_t>(r), row.stream = 7 * static_cast<uint64_t>(r) + 1;
    row.temperature = kind == 0 ? 0.0f : kind % 3 == 1 ? 1.0f : 0.7f;
    if (kind == 2 || kind == 5) row.top_k = static_cast<int32_t>(1 + r % 50);
    if (kind == 3 || kind == 5 || kind == 9) row.top_p = kind == 9 ? 0.1f : 0.9f;
    if (kind == 4) row.min_p = 0.05f;
    if (kind == 6) row.mask = 0;
    if (kind == 7) row.mask = 1;  // none may come
    if (kind == 8 || kind == 9) {
      row.first_edit = static_cast<int32_t>(edits.size()), row.num_edits = 5;
      for (int32_t i = 0; i < 5; ++i) {
        edits.push_back({.token = static_cast<int32_t>((i * 37 + r) % vocab),
                         .bias = i == 1 ? 3.0f : 0.0f,
                         .divisor = i == 2 ? 1.3f : 1.0f,
                         .loss = i == 3 ? 0.5f : 0.0f});
        if (i == 4) edits.back().bias = -std::numeric_limits<float>::infinity();
      }
    }
    if (kind == 10) row.is_used = 0;
    list.push_back(row);
  }
  edits.resize(std::max<size_t>(edits.size(), 1));
}

void sample(Case& c, int64_t rows, int64_t vocab, bool is_flat) {
  std::vector<SampleRow> list;
  std::vector<LogitEdit> edits;
  make_rows(rows, vocab, list, edits);
  const int64_t words = (vocab + 31) / 32;
  std::vector<int32_t> masks;
  const base::CounterRng rng{5, 77};
  for (int64_t w = 0; w < 2 * words; ++w)
    masks.push_back(static_cast<int32_t>(w < words ? rng.bits(static_cast<uint64_t>(w)) : 0));
  auto raw = [&](const auto& values) {
    std::vector<int32_t> out(values.size() * sizeof(values[0]) / 4);
    std::memcpy(out.data(), values.data(), out.size() * 4);
    return out;
  };
  const std::vector<int32_t> raw_rows = raw(list), raw_edits = raw(edits);
  const int logits = c.random({rows, vocab}, DType::f32, is_flat ? 0.01f : 3.0f),
            row = c.integers({static_cast<int64_t>(raw_rows.size())}, raw_rows),
            edit = c.integers({static_cast<int64_t>(raw_edits.size())}, raw_edits),
            mask = c.integers({2, words}, masks), tokens = c.output({rows}, DType::i32),
            ranks = c.output({rows}, DType::i32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.sample(s, {.logits = at(logits),
                     .vocab = vocab - vocab / 10,
                     .rows = at(row),
                     .edits = at(edit),
                     .masks = at(mask),
                     .tokens = at(tokens),
                     .ranks = at(ranks)});
  });
  c.expect_equal(tokens, "tokens");
  c.expect_equal(ranks, "ranks");
  c.expect_equal(logits, "logits");
}

void register_samples() {
  if (!has_own<&KernelTable::sample>()) return;
  struct Rows {
    int64_t rows, vocab;
    bool is_flat;
    Size size;
  };
  for (const Rows& r : {Rows{24, 1000, false, Size::small}, Rows{13, 333, true, Size::small},
                        Rows{36, 50257, false, Size::large}, Rows{24, 128256, true, Size::large}}) {
    add("Sample", DType::f32, fmt::format("{}x{}{}", r.rows, r.vocab, r.is_flat ? "_flat" : ""), r.size,
        [=](Case& c) { sample(c, r.rows, r.vocab, r.is_flat); });
  }
}

}  // namespace

void register_decoding_cases() {
  for (DType t : {DType::bf16, DType::f16}) {
    register_few_rows(t);
    register_pages(t);
  }
  register_samples();
}

}  // namespace sinter::kernels::cases
