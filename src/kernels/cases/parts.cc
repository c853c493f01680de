// Cases: kernels over parts of the vocabulary and of the keys, which ranks of the tensor and context axes run.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/cases/case.h"

namespace sinter::kernels::cases {
namespace {

std::vector<int32_t> numbers(int64_t count, const std::function<int64_t(int64_t)>& value) {
  std::vector<int32_t> list;
  for (int64_t i = 0; i < count; ++i) list.push_back(static_cast<int32_t>(value(i)));
  return list;
}

// Tokens of which some lie in rows [first, first + V) of the vocabulary.
void vocab_embedding(Case& c, DType t, int64_t tokens, int64_t V, int64_t C, int64_t first) {
  int token = c.integers({tokens}, numbers(tokens, [&](int64_t i) { return i * i * 7 % (2 * V + first); })),
      table = c.random({V, C}, t), y = c.output({tokens, C}, t), dy = c.random({tokens, C}, t),
      dtable = c.random({V, C}, DType::f32);
  c.run([&](const KernelTable& k, Stream& s, const Case::At& at) {
    k.vocab_embedding_forward(s, {at(token), at(table), first, at(y)});
    k.vocab_embedding_backward(s, {at(token), at(dy), first, at(dtable)});
  });
  c.expect_equal(y, "y");
  c.expect_close(dtable, "dtable", Result::weight_gradient);
}

void softmax(Case& c, DType t, int64_t rows, int64_t V, int64_t first) {
  int logits = c.random({rows, V}, t, 4.0f),
      target = c.integers({rows}, numbers(rows, [&](int64_t i) { return i % 5 == 4 ? -1 : i * 37 % (first + 2 * V); })),
      terms = c.output({2, rows, 3}, DType::f32), lse = c.output({rows}, DType::f32),
      losses = c.output({rows}, DType::f32), weights = c.uniform({rows}, DType::f32, 0, 2),
      scale = c.floats({1}, {0.25f});
  c.run([&](const KernelTable& k, Stream& s, const Case::At& at) {
    for (int64_t part : {0, 1}) {  // the same logits stand for two ranks'
      k.softmax_terms(s, {.logits = at(logits),
                          .targets = at(target),
                          .first = part == 0 ? first : first + V,
                          .terms = at(terms).slice(part, 1).reshape({rows, 3})});
    }
    k.softmax_loss(
        s, {.terms = at(terms), .targets = at(target), .lse = at(lse), .losses = at(losses), .weights = at(weights)});
    k.softmax_gradient(s, {.logits = at(logits),
                           .targets = at(target),
                           .first = first,
                           .lse = at(lse),
                           .scale = at(scale),
                           .weights = at(weights)});
  });
  c.expect_close(terms, "terms", Result::statistic);
  c.expect_close(lse, "lse", Result::statistic);
  c.expect_close(losses, "losses", Result::statistic);
  c.expect_close(logits, "gradient", Result::rounded_sum);
}

void dropout_rows(Case& c, DType t) {
  int rows = c.integers({9}, numbers(9, [](int64_t i) { return i * 11 % 23; })), x = c.random({9, 37}, t),
      y = c.output({9, 37}, t);
  c.run([&](const KernelTable& k, Stream& s, const Case::At& at) {
    k.dropout_rows(s, {.p = 0.3f, .key = {4, 5}, .rows = at(rows), .x = at(x), .y = at(y)});
  });
  c.expect_close(y, "y", Result::rounded);
}

struct Keys {
  int64_t queries, keys, heads, kv_heads, dim;
  int64_t window = 0;  // keys a query sees; 0: all up to its own
  int64_t ahead = 0;   // keys that stand before the first query
  float dropout = 0.0f;
  bool some_blind = false;  // queries that see nothing
};

// Two parts of the keys joined, and the gradients of the second.
void attention_parts(Case& c, DType t, const Keys& p) {
  const int64_t split = p.keys / 2;
  auto end = [&](int64_t i) { return std::min(p.keys, p.ahead + i + 1); };
  auto begin = [&](int64_t i) { return p.window > 0 ? std::max<int64_t>(0, end(i) - p.window) : 0; };
  auto low_end = [&](int64_t i) { return p.some_blind && i % 3 == 0 ? begin(i) : std::min(end(i), split); };
  const int64_t W = (p.heads + 2 * p.kv_heads) * p.dim;
  int qkv = c.random({std::max(p.queries, p.keys), W}, t),
      low_begin =
          c.integers({p.queries}, numbers(p.queries, [&](int64_t i) { return std::min(begin(i), low_end(i)); })),
      low_ends = c.integers({p.queries}, numbers(p.queries, low_end)),
      high_begin = c.integers({p.queries}, numbers(p.queries, [&](int64_t i) { return std::max(begin(i), split); })),
      high_ends = c.integers({p.queries}, numbers(p.queries, [&](int64_t i) { return std::max(end(i), split); })),
      rows = c.integers({p.queries}, numbers(p.queries, [](int64_t i) { return 3 * i + 1; })),
      positions = c.integers({p.keys}, numbers(p.keys, [](int64_t j) { return j; }));
  const int64_t O = p.heads * p.dim;
  int out = c.output({p.queries, O}, DType::f32), lse = c.output({p.heads, p.queries}, DType::f32),
      part = c.output({p.queries, O}, DType::f32), part_lse = c.output({p.heads, p.queries}, DType::f32),
      dout = c.random({p.queries, O}, t), dq = c.random({p.queries, O}, DType::f32),
      dk = c.random({p.keys, p.kv_heads * p.dim}, DType::f32), dv = c.random({p.keys, p.kv_heads * p.dim}, DType::f32);
  c.run([&](const KernelTable& k, Stream& s, const Case::At& at) {
    AttentionParts parts;
    parts.shape = {.num_heads = p.heads,
                   .num_kv_heads = p.kv_heads,
                   .head_dim = p.dim,
                   .scale = 1.0f / std::sqrt(static_cast<float>(p.dim)),
                   .dropout = p.dropout,
                   .key = {8, 9}};
    parts.q = at(qkv).slice(0, p.queries), parts.k = parts.v = at(qkv).slice(0, p.keys);
    parts.k_column = O, parts.v_column = O + p.kv_heads * p.dim;
    parts.query_rows = at(rows), parts.key_positions = at(positions);
    parts.key_begin = at(high_begin), parts.key_end = at(high_ends);
    k.attention_partial_forward(s, {parts, at(part), at(part_lse)});
    AttentionParts low = parts;
    low.key_begin = at(low_begin), low.key_end = at(low_ends);
    k.attention_partial_forward(s, {low, at(out), at(lse)});
    k.attention_combine(s, {at(part), at(part_lse), at(out), at(lse)});
    k.attention_partial_backward(
        s, {.parts = low, .out = at(out), .dout = at(dout), .lse = at(lse), .dq = at(dq), .dk = at(dk), .dv = at(dv)});
  });
  c.expect_close(out, "out", Result::attention, DType::f32);
  if (!p.some_blind) c.expect_close(lse, "lse", Result::log_sum_exp);
  c.expect_close(dq, "dq", Result::attention_gradient, DType::f32);
  c.expect_close(dk, "dk", Result::attention_gradient, DType::f32);
  c.expect_close(dv, "dv", Result::attention_gradient, DType::f32);
}

}  // namespace

void register_parts_cases() {
  for (DType t : kFormats) {
    for (auto [tokens, V, C, first] : {std::array<int64_t, 4>{50, 13, 40, 6}, {300, 100, 72, 0}}) {
      add("VocabEmbedding", t, fmt::format("{}_tokens_rows_{}_to_{}x{}", tokens, first, first + V, C), Size::small,
          [t, tokens = tokens, V = V, C = C, first = first](Case& c) { vocab_embedding(c, t, tokens, V, C, first); });
    }
    for (auto [rows, V, first] : {std::array<int64_t, 3>{11, 101, 0}, {7, 1000, 500}}) {
      add("SoftmaxParts", t, fmt::format("{}x{}_from_{}", rows, V, first), Size::small,
          [t, rows = rows, V = V, first = first](Case& c) { softmax(c, t, rows, V, first); });
    }
    add("DropoutRows", t, "9x37", Size::small, [t](Case& c) { dropout_rows(c, t); });
    for (const Keys& p : {Keys{13, 13, 4, 2, 16}, Keys{40, 70, 6, 2, 64, 0, 30}, Keys{33, 40, 4, 4, 80, 9, 7},
                          Keys{20, 24, 4, 1, 128, 0, 4, 0.2f}, Keys{12, 12, 2, 2, 256, 0, 0, 0.0f, true}}) {
      add("AttentionParts", t,
          fmt::format("{}_to_{}_{}_over_{}x{}{}{}{}", p.queries, p.keys, p.heads, p.kv_heads, p.dim,
                      p.window > 0 ? fmt::format("_window_{}", p.window) : "", p.dropout > 0 ? "_dropout" : "",
                      p.some_blind ? "_some_see_nothing" : ""),
          Size::small, [=](Case& c) { attention_parts(c, t, p); });
    }
  }
}

}  // namespace sinter::kernels::cases
