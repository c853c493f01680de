// Cases: fill, axpby, activation, dropout, rope, embedding, paged writes, column sums.
#include "kernels/cuda/test_harness.h"

namespace sinter::kernels::cuda_test {
namespace {

std::vector<int64_t> sizes(std::initializer_list<int64_t> all) {
  std::vector<int64_t> s(all);
  if (test_options().small && s.size() > 2) s.resize(2);
  return s;
}

void test_fill_and_axpby() {
  for (DType y : kFormats) {
    for (int64_t n : sizes({1, 1003, 100000})) {
      if (wants("fill")) {
        Case c("fill", y, Shape{n}.to_string());
        int out = c.output({n}, y);
        c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) { table.fill(s, {at(out), 1.5f}); });
        c.expect_equal(out, "y");
      }
      if (!wants("axpby")) continue;
      for (DType x : kFormats) {
        for (float beta : {0.0f, 0.5f}) {
          Case c("axpby", y, fmt::format("{} {} beta {}", base::dtype_name(x), n, beta));
          int in = c.random({n}, x), out = beta == 0 ? c.output({n}, y) : c.random({n}, y);
          c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
            table.axpby(s, {.x = at(in), .y = at(out), .alpha = 2.0f, .beta = beta});
          });
          c.expect_close(out, "y", rounding_limit(y));
        }
      }
    }
  }
}

void test_activation() {
  struct Kind {
    spec::Activation kind;
    const char* name;
  };
  for (DType t : kFormats) {
    for (Kind k : {Kind{spec::Activation::silu, "silu"}, Kind{spec::Activation::gelu, "gelu"},
                   Kind{spec::Activation::gelu_tanh, "gelu_tanh"}, Kind{spec::Activation::relu, "relu"}}) {
      for (bool gated : {true, false}) {
        for (int64_t f : sizes({64, 33, 1024})) {
          int64_t rows = 37, width = gated ? 2 * f : f;
          std::string shape = fmt::format("({}, {}) {}{}", rows, f, k.name, gated ? " gated" : "");
          if (wants("activation_forward")) {
            Case c("activation_forward", t, shape);
            int x = c.random({rows, width}, t, 2.0f), y = c.output({rows, f}, t);
            c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
              table.activation_forward(s, {k.kind, gated, at(x), at(y)});
            });
            c.expect_close(y, "y", rounding_limit(t));
          }
          if (!wants("activation_backward")) continue;
          Case c("activation_backward", t, shape);
          int x = c.random({rows, width}, t, 2.0f), dy = c.random({rows, f}, t),
              dx = f == 33 ? x : c.output({rows, width}, t), sums = gated ? -1 : c.random({f}, DType::f32);
          c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
            table.activation_backward(s, {k.kind, gated, at(dy), at(x), at(dx), at(sums)});
          });
          c.expect_close(dx, "dx", rounding_limit(t));
          if (!gated) c.expect_close(sums, "dx_sums", std::max(2e-5, rounding_limit(t)));
        }
      }
    }
  }
}

// Both in place.
void test_slopes() {
  if (!wants("activation_slope")) return;
  for (DType t : kFormats) {
    for (auto kind :
         {spec::Activation::gelu, spec::Activation::gelu_tanh, spec::Activation::silu, spec::Activation::relu}) {
      for (int64_t f : sizes({64, 33, 1024})) {
        const int64_t rows = 37;
        const std::string shape = fmt::format("({}, {}) {}", rows, f, static_cast<int>(kind));
        Case c("activation_slope", t, shape);
        int x = c.random({rows, f}, t, 2.0f), slope = c.output({rows, f}, t);
        c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
          table.activation_forward(s, {.kind = kind, .gated = false, .x = at(x), .y = at(x), .slope = at(slope)});
        });
        c.expect_close(x, "y", rounding_limit(t));
        c.expect_close(slope, "slope", rounding_limit(t));
        for (bool has_sums : {true, false}) {
          Case back("activation_slope", t, shape + " back");
          int dy = back.random({rows, f}, t), given = back.random({rows, f}, t),
              sums = has_sums ? back.random({f}, DType::f32) : -1;
          back.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
            table.activation_backward(
                s, {.kind = kind, .gated = false, .dy = at(dy), .dx = at(dy), .dx_sums = at(sums), .slope = at(given)});
          });
          back.expect_close(dy, "dx", rounding_limit(t));
          if (has_sums) back.expect_close(sums, "dx_sums", std::max(2e-5, rounding_limit(t)));
        }
      }
    }
  }
}

void test_dropout() {
  if (!wants("dropout")) return;
  for (DType t : kFormats) {
    for (int64_t n : sizes({1000, 1001, 50001})) {
      for (uint64_t first : {uint64_t{0}, uint64_t{13}}) {
        Case c("dropout", t, fmt::format("{} from {}", n, first));
        int x = c.random({n}, t), y = first ? x : c.output({n}, t);
        c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
          table.dropout(s, {0.3f, {11, 22}, first, at(x), at(y)});
        });
        c.expect_close(y, "y", rounding_limit(t));
      }
    }
  }
}

void test_rope() {
  for (int64_t half : sizes({32, 5, 64})) {
    if (wants("rope_table")) {
      int64_t tokens = 70;
      Case c("rope_table", DType::f32, fmt::format("T {} D {}", tokens, 2 * half));
      std::vector<int32_t> positions, sequence;
      for (int i = 0; i < tokens; ++i) positions.push_back(i * 37), sequence.push_back(i == tokens - 1 ? -1 : i % 3);
      int p = c.integers({tokens}, positions), q = c.integers({tokens}, sequence);
      int f = c.uniform({3, half}, DType::f32, 0.0001f, 1.0f), out = c.output({tokens, 2 * half}, DType::f32);
      c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
        table.rope_table(s, {at(p), at(q), at(f), 1.1f, at(out)});
      });
      c.expect_close(out, "cos_sin", 1e-5);
    }
    if (!wants("rope")) continue;
    for (DType t : kFormats) {
      for (bool inverse : {false, true}) {
        int64_t tokens = 33, heads = 5, rotated = 4;
        Case c("rope", t, fmt::format("T {} D {} inverse {}", tokens, 2 * half, inverse));
        int x = c.random({tokens, heads * 2 * half}, t), table_ = c.uniform({tokens, 2 * half}, DType::f32, -1, 1);
        c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
          table.rope(s, {rotated, 2 * half, at(x), at(table_), inverse});
        });
        c.expect_close(x, "x", rounding_limit(t));
      }
    }
  }
}

void test_embedding() {
  for (DType t : kFormats) {
    for (int64_t channels : sizes({64, 33, 768})) {
      for (bool positions : {true, false}) {
        int64_t tokens = channels == 768 ? 1500 : 217, vocab = 50, max_positions = 40;
        std::vector<int32_t> ids, places;
        // Zipf-like: long runs of one token, so that runs cross pieces of the sorted order.
        for (int i = 0; i < tokens; ++i)
          ids.push_back(i % 3 == 0 ? 7 : (i * 31) % vocab), places.push_back(i % max_positions);
        std::string shape = fmt::format("T {} C {}{}", tokens, channels, positions ? " positions" : "");
        if (wants("embedding_forward")) {
          Case c("embedding_forward", t, shape);
          int token = c.integers({tokens}, ids), place = c.integers({tokens}, places),
              table_ = c.random({vocab, channels}, t);
          int position_table = positions ? c.random({max_positions, channels}, t) : -1,
              y = c.output({tokens, channels}, t);
          c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
            table.embedding_forward(s, {at(token), at(place), at(table_), at(position_table), at(y)});
          });
          c.expect_close(y, "y", rounding_limit(t));
        }
        if (!wants("embedding_backward")) continue;
        Case c("embedding_backward", t, shape);
        int token = c.integers({tokens}, ids), place = c.integers({tokens}, places),
            dy = c.random({tokens, channels}, t);
        int dtable = c.random({vocab, channels}, DType::f32);
        int dposition = positions ? c.random({max_positions, channels}, DType::f32) : -1;
        c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
          table.embedding_backward(s, {at(token), at(place), at(dy), at(dtable), at(dposition)});
        });
        c.expect_close(dtable, "dtable", 1e-5);
        if (positions) c.expect_close(dposition, "dposition", 1e-5);
      }
    }
  }
}

void test_kv_write() {
  if (!wants("kv_write")) return;
  for (DType t : kFormats) {
    for (int64_t dim : sizes({8, 64, 33})) {
      int64_t heads = 4, kv_heads = 2, tokens = 9, blocks = 5, block_size = 4;
      Case c("kv_write", t, fmt::format("T {} K {} D {}", tokens, kv_heads, dim));
      int qkv = c.random({tokens, (heads + 2 * kv_heads) * dim}, t),
          slots = c.integers({tokens}, {3, 0, -1, 19, 7, 8, 12, -1, 5});
      int keys = c.random({blocks, block_size, kv_heads, dim}, t),
          values = c.random({blocks, block_size, kv_heads, dim}, t);
      c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
        table.kv_write(s, {heads, kv_heads, dim, at(qkv), at(slots), core::kv_layer_of(at(keys), at(values))});
      });
      c.expect_equal(keys, "keys");
      c.expect_equal(values, "values");
    }
  }
}

void test_column_sum() {
  if (!wants("column_sum")) return;
  for (DType t : kFormats) {
    for (int64_t columns : sizes({64, 33, 768, 3072})) {
      for (int64_t rows : sizes({5, 1000})) {
        for (bool accumulate : {true, false}) {
          Case c("column_sum", t, fmt::format("({}, {}) accumulate {}", rows, columns, accumulate));
          int x = c.random({rows, columns}, t),
              y = accumulate ? c.random({columns}, DType::f32) : c.output({columns}, DType::f32);
          c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
            table.column_sum(s, {at(x), at(y), accumulate});
          });
          c.expect_close(y, "y", 1e-5);
        }
      }
    }
  }
}

}  // namespace

void test_elementwise() {
  test_fill_and_axpby();
  test_activation();
  test_slopes();
  test_dropout();
  test_rope();
  test_embedding();
  test_kv_write();
  test_column_sum();
}

}  // namespace sinter::kernels::cuda_test
