// Kernels over parts, whose results put together must be those of the kernel over the whole: ranges of the vocabulary,
// ranges of the keys, some of the heads.
#include "core/host_batch.h"
#include "kernels/cases/tensors.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels {
namespace {

using namespace testing;

const KernelTable* const kTables[] = {reference_table(), cpu_table()};

// Columns [begin, begin + count) of rows.
Tensor columns_of(const Tensor& x, int64_t begin, int64_t count) {
  const int64_t rows = x.size(0), width = x.size(-1);
  const size_t bytes = base::dtype_bytes(x.dtype());
  Tensor y(allocator(), {rows, count}, x.dtype());
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(y.data<char>() + static_cast<size_t>(r * count) * bytes,
                x.data<char>() + static_cast<size_t>(r * width + begin) * bytes, static_cast<size_t>(count) * bytes);
  return y;
}

TEST(VocabRange, LossAndGradientOfThreeRangesAreThoseOfTheWholeRow) {
  const int64_t R = 9, V = 101, cuts[] = {0, 40, 41, 101};
  for (const KernelTable* table : kTables) {
    for (const Format& format : kFormats) {
      const Tensor logits = random_tensor({R, V}, format.dtype, 3, 4.0f);
      Tensor targets = int_tensor({0, 39, 40, 41, 100, -1, 7, 99, 40});
      const Tensor scale = core::make_tensor<float>(allocator(), {1}, {0.25f});
      Tensor whole = clone(logits), losses = empty_tensor({R}, DType::f32);
      reference_table()->cross_entropy(
          stream(), {.logits = whole, .targets = targets, .losses = losses, .scale = scale, .write_gradient = true});
      Tensor terms = empty_tensor({3, R, 3}, DType::f32), lse = empty_tensor({R}, DType::f32);
      Tensor found = empty_tensor({R}, DType::f32);
      for (int p = 0; p < 3; ++p) {
        table->softmax_terms(stream(), {.logits = columns_of(logits, cuts[p], cuts[p + 1] - cuts[p]),
                                        .targets = targets,
                                        .first = cuts[p],
                                        .terms = terms.slice(p, 1).reshape({R, 3})});
      }
      table->softmax_loss(stream(), {.terms = terms, .targets = targets, .lse = lse, .losses = found});
      expect_close(found, losses, 1e-5, "losses");
      for (int p = 0; p < 3; ++p) {
        Tensor part = columns_of(logits, cuts[p], cuts[p + 1] - cuts[p]);
        table->softmax_gradient(stream(),
                                {.logits = part, .targets = targets, .first = cuts[p], .lse = lse, .scale = scale});
        expect_close(part, columns_of(whole, cuts[p], cuts[p + 1] - cuts[p]), format.tolerance, "gradient");
      }
    }
  }
}

TEST(VocabRange, EmbeddingsOfTwoRangesAddUpToTheWhole) {
  const int64_t V = 30, C = 17, cut = 11;
  for (const KernelTable* table : kTables) {
    const Tensor rows = random_tensor({V, C}, DType::bf16, 1), dy = random_tensor({7, C}, DType::bf16, 2);
    const Tensor tokens = int_tensor({0, 10, 11, 29, 11, 5, 10});
    Tensor whole = empty_tensor({7, C}, DType::bf16), dwhole = zero_tensor({V, C}, DType::f32);
    table->embedding_forward(stream(), {.tokens = tokens, .table = rows, .y = whole});
    table->embedding_backward(stream(), {.tokens = tokens, .dy = dy, .dtable = dwhole});
    Tensor low = empty_tensor({7, C}, DType::bf16), high = empty_tensor({7, C}, DType::bf16);
    table->vocab_embedding_forward(stream(), {tokens, rows.slice(0, cut), 0, low});
    table->vocab_embedding_forward(stream(), {tokens, rows.slice(cut, V - cut), cut, high});
    table->axpby(stream(), {.x = high, .y = low, .beta = 1.0f});
    EXPECT_TRUE(bit_equal(low, whole));
    Tensor dlow = zero_tensor({cut, C}, DType::f32), dhigh = zero_tensor({V - cut, C}, DType::f32);
    table->vocab_embedding_backward(stream(), {tokens, dy, 0, dlow});
    table->vocab_embedding_backward(stream(), {tokens, dy, cut, dhigh});
    EXPECT_TRUE(bit_equal(dlow, dwhole.slice(0, cut)));
    EXPECT_TRUE(bit_equal(dhigh, dwhole.slice(cut, V - cut)));
  }
}

TEST(RowDropout, NumbersRowsByTheArray) {
  const int64_t R = 6, C = 13;
  const Tensor x = random_tensor({R, C}, DType::f32, 8);
  Tensor whole = empty_tensor({R, C}, DType::f32), some = empty_tensor({2, C}, DType::f32);
  const RandomKey key{4, 5};
  reference_table()->dropout(stream(), {.p = 0.4f, .key = key, .x = x, .y = whole});
  Tensor two = empty_tensor({2, C}, DType::f32);
  std::memcpy(two.raw(), x.slice(4, 1).raw(), two.bytes() / 2);
  std::memcpy(two.slice(1, 1).raw(), x.slice(1, 1).raw(), two.bytes() / 2);
  for (const KernelTable* table : kTables) {
    table->dropout_rows(stream(), {.p = 0.4f, .key = key, .rows = int_tensor({4, 1}), .x = two, .y = some});
    EXPECT_TRUE(bit_equal(some.slice(0, 1), whole.slice(4, 1)));
    EXPECT_TRUE(bit_equal(some.slice(1, 1), whole.slice(1, 1)));
  }
}

// Two documents of packed rows, their attention whole and by parts of the keys.
struct Packed {
  Packed(DType dtype, int64_t window_, float dropout) : window(window_) {
    shape = {.num_heads = 4, .num_kv_heads = 2, .head_dim = 20, .window = window_, .scale = 0.3f, .dropout = dropout};
    shape.key = {9, 2};
    shape.first_token = 100;
    host.add_sequence(std::vector<int32_t>(21, 1));
    host.add_sequence(std::vector<int32_t>(12, 1));
    batch = core::upload(allocator(), host);
    qkv = random_tensor({T, (4 + 2 * 2) * 20}, dtype, 5);
    dout = random_tensor({T, 80}, dtype, 6);
    for (int32_t t = 0; t < T; ++t) {
      const int32_t start = t < 21 ? 0 : 21;
      begins.push_back(window > 0 ? std::max(start, t - static_cast<int32_t>(window) + 1) : start);
      ends.push_back(t + 1);
      rows.push_back(100 + t);
      positions.push_back(t - start);
    }
  }
  // Keys [first, first + count) of all rows, for queries of all rows.
  AttentionParts part(int32_t first, int32_t count) const {
    std::vector<int32_t> b = begins, e = ends;
    for (size_t t = 0; t < b.size(); ++t) b[t] = std::max(b[t] - first, 0), e[t] = std::min(e[t] - first, count);
    const Tensor keys = qkv.slice(first, count);
    return {.shape = shape,
            .q = qkv,
            .k = keys,
            .v = keys,
            .k_column = 80,
            .v_column = 120,
            .key_begin = int_tensor(b),
            .key_end = int_tensor(e),
            .query_rows = int_tensor(rows),
            .key_positions = int_tensor({positions.begin() + first, positions.begin() + first + count})};
  }

  static constexpr int32_t T = 33;
  int64_t window;
  AttentionShape shape;
  core::HostBatch host;
  RaggedBatch batch;
  Tensor qkv, dout;
  std::vector<int32_t> begins, ends, rows, positions;
};

TEST(AttentionParts, OfTheKeysCombineToTheWhole) {
  for (const KernelTable* table : kTables) {
    for (const Format& format : kFormats) {
      for (int64_t window : {0, 6}) {
        for (float dropout : {0.0f, 0.3f}) {
          const Packed p(format.dtype, window, dropout);
          Tensor whole = empty_tensor({p.T, 80}, format.dtype), whole_lse = empty_tensor({4, p.T}, DType::f32);
          reference_table()->attention_forward(
              stream(), {.shape = p.shape, .batch = &p.batch, .qkv = p.qkv, .out = whole, .lse = whole_lse});
          Tensor dqkv = empty_tensor(p.qkv.shape(), format.dtype);
          reference_table()->attention_backward(stream(), {.shape = p.shape,
                                                           .batch = &p.batch,
                                                           .qkv = p.qkv,
                                                           .out = whole,
                                                           .lse = whole_lse,
                                                           .dout = p.dout,
                                                           .delta = empty_tensor({4, p.T}, DType::f32),
                                                           .dqkv = dqkv});
          Tensor out = empty_tensor({p.T, 80}, DType::f32), lse = empty_tensor({4, p.T}, DType::f32);
          const int32_t cuts[] = {0, 9, 10, 33};
          for (int i = 0; i < 3; ++i) {
            Tensor part = empty_tensor({p.T, 80}, DType::f32), part_lse = empty_tensor({4, p.T}, DType::f32);
            table->attention_partial_forward(
                stream(), {p.part(cuts[i], cuts[i + 1] - cuts[i]), i ? part : out, i ? part_lse : lse});
            if (i) table->attention_combine(stream(), {part, part_lse, out, lse});
          }
          expect_close(out, whole, format.tolerance, "out");
          expect_close(lse, whole_lse, 1e-5, "lse");
          Tensor dq = zero_tensor({p.T, 80}, DType::f32), dk = zero_tensor({p.T, 40}, DType::f32),
                 dv = zero_tensor({p.T, 40}, DType::f32);
          for (int i = 0; i < 3; ++i) {
            const int32_t first = cuts[i], count = cuts[i + 1] - first;
            table->attention_partial_backward(
                stream(), {p.part(first, count), out, p.dout, lse, dq, dk.slice(first, count), dv.slice(first, count)});
          }
          expect_close(dq, columns_of(dqkv, 0, 80), 2 * format.tolerance, "dq");
          expect_close(dk, columns_of(dqkv, 80, 40), 2 * format.tolerance, "dk");
          expect_close(dv, columns_of(dqkv, 120, 40), 2 * format.tolerance, "dv");
        }
      }
    }
  }
}

TEST(AttentionParts, SomeOfTheHeadsDropWhatAllOfThemDrop) {
  const Packed p(DType::f32, 0, 0.3f);
  for (const KernelTable* table : kTables) {
    Tensor whole = empty_tensor({p.T, 80}, DType::f32), half = empty_tensor({p.T, 40}, DType::f32);
    table->attention_forward(stream(), {.shape = p.shape, .batch = &p.batch, .qkv = p.qkv, .out = whole});
    AttentionShape shape = p.shape;
    shape.num_heads = 2, shape.num_kv_heads = 1, shape.first_head = 2, shape.total_heads = 4;
    Tensor qkv = empty_tensor({p.T, 80}, DType::f32);  // heads 2 and 3, key head 1, value head 1
    const int64_t from[] = {40, 60, 100, 140};
    for (int64_t h = 0; h < 4; ++h) {
      const Tensor head = columns_of(p.qkv, from[h], 20);
      for (int64_t t = 0; t < p.T; ++t)
        std::memcpy(qkv.data<float>() + t * 80 + h * 20, head.data<float>() + t * 20, 80);
    }
    table->attention_forward(stream(), {.shape = shape, .batch = &p.batch, .qkv = qkv, .out = half});
    expect_close(half, columns_of(whole, 40, 40), 1e-6, "heads 2 and 3");
  }
}

}  // namespace
}  // namespace sinter::kernels
