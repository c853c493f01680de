// Kernels of decoding: products of few rows, attention of few queries over pages, choosing tokens.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "kernels/cuda/test_harness.h"
#include "kernels/fused.h"

namespace sinter::kernels::cuda_test {
namespace {

struct Product {
  int64_t m, n, k;
};

void test_small_product(DType t, const Product& p) {
  if (!wants("small_product")) return;
  const float scale = 1.0f / std::sqrt(static_cast<float>(p.k));
  for (int extras : {0, 1, 2}) {  // nothing, bias and addend, f32 result
    Case c("small_product", t, fmt::format("{}x{}x{} extras {}", p.m, p.n, p.k, extras));
    const DType out = extras == 2 ? DType::f32 : t;
    int a = c.random({p.m, p.k}, t), b = c.random({p.n, p.k}, t, scale), y = c.output({p.m, p.n}, out),
        bias = extras == 1 ? c.random({p.n}, t) : -1, addend = extras == 1 ? c.random({p.m, p.n}, t) : -1;
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      MatmulArgs args;
      args.a = at(a), args.b.data = at(b), args.c = at(y), args.bias = at(bias), args.addend = at(addend);
      args.transpose_b = true;
      table.matmul(s, args);
    });
    c.expect_close(y, "c", std::max(2e-5, out == DType::f32 ? 1e-5 : rounding_limit(t)));
  }
  {
    Case c("small_product", t, fmt::format("{}x{}x{} gated", p.m, p.n, p.k));
    int a = c.random({p.m, p.k}, t), b = c.random({2 * p.n, p.k}, t, scale), y = c.output({p.m, p.n}, t),
        pre = c.output({p.m, 2 * p.n}, t);
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      FusedMatmulArgs args;
      args.product.a = at(a), args.product.b.data = at(b), args.product.c = at(y), args.product.transpose_b = true;
      args.activation = spec::Activation::silu, args.pre_activation = at(pre), args.gated = true;
      fused_matmul(table, s, args);
    });
    c.expect_close(pre, "pre", std::max(2e-5, rounding_limit(t)));
    c.expect_close(y, "c", std::max(2e-5, 2 * rounding_limit(t)));
  }
}

// Weights in fp8 in three parts, as Q, K and V of a file; a scale for a row, or for each 128 columns of it.
void test_small_fp8(DType t, int64_t m, int64_t n, int64_t k, int64_t group) {
  if (!wants("small_product")) return;
  Case c("small_product", t, fmt::format("{}x{}x{} fp8, groups of {}", m, n, k, group));
  const base::CounterRng rng{9, static_cast<uint64_t>(m + n + k)};
  std::vector<int32_t> codes(static_cast<size_t>(n * k / 4));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<int32_t>(rng.bits(i) & 0xbfbfbfbfu);  // no NaN
  const int64_t groups = (k + group - 1) / group;
  int a = c.random({m, k}, t), w = c.integers({n * k / 4}, codes),
      scales = c.uniform({n, groups}, DType::f32, 0.01f, 0.02f), y = c.output({m, n}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
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
  c.expect_close(y, "c", rounding_limit(t));
}

void test_small_rotated(DType t, int64_t m, int64_t k, int64_t dim, int64_t heads, int64_t kv_heads) {
  if (!wants("small_product")) return;
  const int64_t n = (heads + 2 * kv_heads) * dim;
  Case c("small_product", t, fmt::format("{} rows of {} to {} heads of {} rotated", m, k, heads + 2 * kv_heads, dim));
  int a = c.random({m, k}, t), b = c.random({n, k}, t, 1.0f / std::sqrt(static_cast<float>(k))),
      y = c.output({m, n}, t), angles = c.uniform({m, dim}, DType::f32, -1, 1);
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    rotated_matmul(table, s,
                   {.product = {.a = at(a), .b = {.data = at(b)}, .c = at(y), .transpose_b = true},
                    .rope = {.num_rotated = heads + kv_heads, .head_dim = dim, .x = at(y), .cos_sin = at(angles)}});
  });
  c.expect_close(y, "c", std::max(2e-5, 2 * rounding_limit(t)));
}

struct PagedCase {
  std::vector<int32_t> queries, contexts;
  int64_t heads, kv_heads, dim, window = 0, block_size = 16, padding = 0;
  bool heads_first = true, is_fp8 = false;
};

// Keys and values are written by kv_write of a batch of all tokens, then read by a batch of the last queries; where
// these are all tokens, by the same batch.
void test_paged(DType t, const PagedCase& p) {
  if (!wants("decode_attention")) return;
  Case c("decode_attention", t,
         fmt::format("{} sequences, {} over {} heads of {}, window {}, blocks of {}, most context {}{}{}",
                     p.queries.size(), p.heads, p.kv_heads, p.dim, p.window, p.block_size,
                     *std::max_element(p.contexts.begin(), p.contexts.end()), p.heads_first ? "" : ", tokens first",
                     p.is_fp8 ? ", fp8" : ""));
  const auto S = static_cast<int64_t>(p.queries.size());
  int64_t width = 1, total = 0;
  std::vector<int32_t> offsets{0}, tables, slots;
  for (int32_t context : p.contexts) width = std::max(width, (context + p.block_size - 1) / p.block_size);
  const int64_t num_blocks = S * width + 5;
  for (int64_t s = 0; s < S; ++s) {
    offsets.push_back(offsets.back() + p.queries[static_cast<size_t>(s)]);
    for (int64_t b = 0; b < width; ++b) tables.push_back(static_cast<int32_t>((s * width + b) * 7 % (S * width)));
    if (std::gcd(int64_t{7}, S * width) != 1) {
      for (int64_t b = 0; b < width; ++b)
        tables[tables.size() - static_cast<size_t>(width - b)] = static_cast<int32_t>(s * width + b);
    }
    for (int32_t j = 0; j < p.contexts[static_cast<size_t>(s)]; ++j, ++total) {
      slots.push_back(tables[static_cast<size_t>(s * width + j / p.block_size)] * static_cast<int32_t>(p.block_size) +
                      j % static_cast<int32_t>(p.block_size));
    }
  }
  const int64_t T = offsets.back() + p.padding, W = (p.heads + 2 * p.kv_heads) * p.dim;
  const DType stored = p.is_fp8 ? DType::f8e4m3 : t;
  int all = c.random({total, W}, t), slots_of_all = c.integers({total}, slots), qkv = c.random({T, W}, t),
      offset = c.integers({S + 1}, offsets), context = c.integers({S}, p.contexts),
      table_of = c.integers({S, width}, tables), out = c.output({T, p.heads * p.dim}, t),
      keys = c.random({num_blocks, p.block_size, p.kv_heads, p.dim}, t),
      key_scales = c.uniform({p.kv_heads}, DType::f32, 0.01f, 0.02f),
      value_scales = c.uniform({p.kv_heads}, DType::f32, 0.01f, 0.02f);
  int values = c.random({num_blocks, p.block_size, p.kv_heads, p.dim}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    auto as_stored = [&](int handle) {
      Tensor x = at(handle);
      return Tensor::view_of(x.raw(), x.shape(), stored, x.device());
    };
    core::KvLayer cache = core::kv_layer_of(as_stored(keys), as_stored(values));
    if (p.heads_first) cache.head_stride = p.block_size * p.dim, cache.token_stride = p.dim;
    if (p.is_fp8) cache.key_scales = at(key_scales), cache.value_scales = at(value_scales);
    table.kv_write(s, {p.heads, p.kv_heads, p.dim, at(all), at(slots_of_all), cache});
    RaggedBatch batch;
    batch.offsets = at(offset), batch.contexts = at(context);
    batch.num_tokens = T, batch.num_sequences = S;
    batch.max_query = *std::max_element(p.queries.begin(), p.queries.end());
    batch.max_context = width * p.block_size;
    batch.equal_lengths = core::has_equal_lengths(offsets, batch.max_query, T);
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
  c.expect_close(out, "out", std::max(2e-5, (p.is_fp8 ? 3 : 2) * rounding_limit(t)));
}

void test_sample(int64_t rows, int64_t vocab, bool is_flat) {
  if (!wants("sample")) return;
  Case c("sample", DType::f32, fmt::format("{} rows of {}{}", rows, vocab, is_flat ? " flat" : ""));
  std::vector<SampleRow> list;
  std::vector<LogitEdit> edits;
  const int64_t words = (vocab + 31) / 32;
  std::vector<int32_t> masks;
  const base::CounterRng rng{5, 77};
  for (int64_t w = 0; w < 2 * words; ++w)
    masks.push_back(static_cast<int32_t>(w < words ? rng.bits(static_cast<uint64_t>(w)) : 0));
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
  auto raw = [&](const auto& values) {
    std::vector<int32_t> out(values.size() * sizeof(values[0]) / 4);
    std::memcpy(out.data(), values.data(), out.size() * 4);
    return out;
  };
  const std::vector<int32_t> raw_rows = raw(list), raw_edits = raw(edits);
  int logits = c.random({rows, vocab}, DType::f32, is_flat ? 0.01f : 3.0f),
      row = c.integers({static_cast<int64_t>(raw_rows.size())}, raw_rows),
      edit = c.integers({static_cast<int64_t>(raw_edits.size())}, raw_edits), mask = c.integers({2, words}, masks),
      tokens = c.output({rows}, DType::i32), ranks = c.output({rows}, DType::i32);
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
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

}  // namespace

void test_serving() {
  for (DType t : {DType::bf16, DType::f16}) {
    std::vector<Product> products = {{1, 256, 512}, {3, 48, 80},      {8, 4096, 4096},
                                     {9, 320, 208}, {16, 1024, 2064}, {5, 64, 14336}};
    if (test_options().small) products = {{1, 32, 80}, {9, 48, 208}};
    for (const Product& p : products) test_small_product(t, p);
    test_small_fp8(t, 1, 256, 512, 512);
    test_small_fp8(t, 11, 128, 1024, 128);
    test_small_rotated(t, 1, 512, 128, 4, 2);
    test_small_rotated(t, 7, 96, 64, 3, 1);
    test_small_rotated(t, 16, 256, 16, 4, 4);
    test_paged(t, {{1, 1, 1}, {1, 100, 257}, 8, 2, 128});
    test_paged(t, {{1, 2, 8, 3}, {33, 700, 512, 3}, 8, 2, 64, 0, 16, 3});
    test_paged(t, {{1, 1}, {600, 90}, 4, 4, 96, 130, 32});
    test_paged(t, {{4, 1}, {260, 61}, 16, 1, 256, 0, 16});
    test_paged(t, {{1, 20, 1, 9}, {300, 20, 40, 900}, 8, 2, 128, 0, 16, 5});
    test_paged(t, {{1, 8}, {300, 520}, 40, 2, 128, 64, 16, 0, false});
    test_paged(t, {{1, 3}, {300, 77}, 4, 2, 80, 0, 7});
    test_paged(t, {{1, 20}, {300, 520}, 8, 2, 128, 0, 16, 0, true, true});
    // Caches in fp8, of few queries: each head size, a window, pieces, padding.
    test_paged(t, {{1, 4, 1}, {700, 513, 17}, 8, 2, 128, 0, 16, 2, true, true});
    test_paged(t, {{1, 8}, {300, 520}, 8, 2, 64, 100, 16, 0, true, true});
    test_paged(t, {{2, 1}, {290, 33}, 6, 3, 96, 0, 16, 0, true, true});
    test_paged(t, {{1, 1}, {260, 600}, 4, 1, 256, 0, 32, 0, true, true});
    test_paged(t, {{1, 2}, {40, 70}, 4, 2, 40, 0, 16, 0, true, true});
    test_paged(t, {{256, 256}, {256, 256}, 8, 2, 64});  // fresh prompts
    test_paged(t, {{384}, {384}, 8, 2, 128});
    if (!test_options().small) {
      test_paged(t, {{1, 1}, {20000, 5000}, 8, 2, 128});
      test_paged(t, {{1, 1}, {17000, 40}, 4, 1, 64, 3000});
    }
  }
  test_sample(24, 1000, false);
  test_sample(13, 333, true);
  if (!test_options().small) test_sample(36, 50257, false), test_sample(24, 128256, true);
}

}  // namespace sinter::kernels::cuda_test
