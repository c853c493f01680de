// Cases: sums, norms of ranges, columns, writes of keys and values.
#include "kernels/cases/case.h"

namespace sinter::kernels::cases {
namespace {

struct Matrix {
  int64_t rows, columns;
  Size size;
};

void column_sum(Case& c, DType t, int64_t rows, int64_t columns, bool accumulate) {
  const int x = c.random({rows, columns}, t),
            y = accumulate ? c.random({columns}, DType::f32) : c.output({columns}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.column_sum(s, {at(x), at(y), accumulate});
  });
  c.expect_close(y, "y", Result::statistic);
}

void sum_squares(Case& c, DType t, Shape shape) {
  const int x = c.random(shape, t), total = c.floats({1}, {1.0f});
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) { table.sum_squares(s, {at(x), at(total)}); });
  c.expect_close(total, "total", Result::statistic);
}

void register_column_sums() {
  std::vector<Matrix> shapes;
  for (int64_t columns : {64, 33, 768, 3072}) {
    for (int64_t rows : {5, 1000}) shapes.push_back({rows, columns, columns <= 64 ? Size::small : Size::medium});
  }
  for (int64_t rows : {1, 15, 16, 17, 1500}) {
    for (int64_t columns : {1, 17, 130}) shapes.push_back({rows, columns, Size::medium});
  }
  for (DType t : kFormats) {
    for (const Matrix& m : shapes) {
      for (bool accumulate : {true, false}) {
        add("ColumnSum", t, fmt::format("{}x{}{}", m.rows, m.columns, accumulate ? "_added" : ""), m.size,
            [=](Case& c) { column_sum(c, t, m.rows, m.columns, accumulate); });
      }
    }
  }
}

void register_sum_squares() {
  for (DType t : kFormats) {
    for (int64_t rows : {1, 15, 16, 17, 1500}) {
      for (int64_t columns : {1, 17, 130}) {
        add("SumSquares", t, fmt::format("{}x{}", rows, columns), Size::medium, [=](Case& c) {
          sum_squares(c, t, {rows, columns});
        });
      }
    }
    for (int64_t n : {1, 1003, 3000000}) {
      add("SumSquares", t, std::to_string(n),
          n > 2000          ? Size::large
          : t == DType::f16 ? Size::medium
                            : Size::small,
          [=](Case& c) { sum_squares(c, t, {n}); });
    }
  }
}

void sum(Case& c, int64_t n) {
  const int x = c.random({n}, DType::f32, 1.0f, 2.0f), total = c.output({1}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) { table.sum(s, {at(x), at(total)}); });
  c.expect_close(total, "total", Result::exact_sum);
}

void normalize(Case& c, DType t, int64_t n) {
  const int x = c.random({3, n}, t, 4.0f);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) { table.normalize(s, {at(x)}); });
  c.expect_close(x, "x", Result::rounded);
}

void register_sums_and_norms() {
  for (auto [n, size] : {std::pair{1, Size::small},
                         {1003, Size::small},
                         {300000, Size::small},
                         {17, Size::medium},
                         {5000, Size::medium}}) {
    if (has_own<&KernelTable::sum>()) {
      add("Sum", DType::f32, std::to_string(n), size, [n = n](Case& c) { sum(c, n); });
    }
    for (DType t : {DType::f32, DType::bf16}) {
      add("Normalize", t, fmt::format("3x{}", n), size, [t, n = n](Case& c) { normalize(c, t, n); });
    }
  }
}

// Columns [20, 37) of rows of 41 to [3, 20) of rows of 29.
void copy_columns(Case& c, DType t, bool accumulate, bool scales) {
  const int64_t n = 17;
  const int x = c.random({7, 41}, t), y = c.random({7, 29}, t), factors = scales ? c.random({n}, DType::f32) : -1,
            divisors = scales ? c.floats({n}, std::vector<float>(n, 1.5f)) : -1;
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.copy_columns(s, {.x = at(x),
                           .y = at(y),
                           .x_first = 20,
                           .y_first = 3,
                           .columns = n,
                           .factors = at(factors),
                           .divisors = at(divisors),
                           .accumulate = accumulate});
  });
  c.expect_close(y, "columns", Result::rounded);
}

void column_dot(Case& c, DType t, bool accumulate, bool scales) {
  const int64_t n = 17;
  const int a = c.random({70, 41}, t), b = c.random({70, 29}, t),
            y = accumulate ? c.random({n}, DType::f32) : c.output({n}, DType::f32),
            divisors = scales ? c.floats({n}, std::vector<float>(n, 1.5f)) : -1;
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.column_dot(s, {.a = at(a),
                         .b = at(b),
                         .a_first = 20,
                         .b_first = 3,
                         .y = at(y),
                         .divisors = at(divisors),
                         .accumulate = accumulate});
  });
  c.expect_close(y, "y", Result::weight_gradient);
}

void row_norm(Case& c, DType t, int64_t rows, int64_t columns) {
  const int x = c.random({rows, columns}, t), y = c.output({rows}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) { table.row_norm(s, {.x = at(x), .y = at(y)}); });
  c.expect_close(y, "y", Result::statistic);
}

// What low-rank adapters ask for.
void register_columns() {
  for (DType t : kFormats) {
    for (bool accumulate : {false, true}) {
      for (bool scales : {false, true}) {
        const std::string shape = fmt::format("17_of_41{}{}", accumulate ? "_added" : "", scales ? "_scaled" : "");
        add("CopyColumns", t, shape, Size::medium, [=](Case& c) { copy_columns(c, t, accumulate, scales); });
        if (!has_own<&KernelTable::column_dot>()) continue;
        add("ColumnDot", t, shape, Size::medium, [=](Case& c) { column_dot(c, t, accumulate, scales); });
      }
    }
    if (!has_own<&KernelTable::row_norm>()) continue;
    for (auto [rows, columns] : {std::pair{1, 1}, {37, 33}, {5, 768}}) {
      add("RowNorm", t, fmt::format("{}x{}", rows, columns), Size::medium,
          [t, rows = rows, columns = columns](Case& c) { row_norm(c, t, rows, columns); });
    }
  }
}

void kv_write(Case& c, DType t, int64_t dim, std::vector<int32_t> slots) {
  const int64_t heads = 4, kv_heads = 2, tokens = static_cast<int64_t>(slots.size()), blocks = 5, block_size = 4;
  const int qkv = c.random({tokens, (heads + 2 * kv_heads) * dim}, t), slot = c.integers({tokens}, slots),
            keys = c.random({blocks, block_size, kv_heads, dim}, t),
            values = c.random({blocks, block_size, kv_heads, dim}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.kv_write(s, {heads, kv_heads, dim, at(qkv), at(slot), core::kv_layer_of(at(keys), at(values))});
  });
  c.expect_equal(keys, "keys");
  c.expect_equal(values, "values");
}

void register_kv_writes() {
  for (DType t : kFormats) {
    for (auto [dim, size] : {std::pair{8, Size::small}, {64, Size::small}, {33, Size::medium}}) {
      add("KvWrite", t, fmt::format("9x2x{}", dim), size, [t, dim = dim](Case& c) {
        kv_write(c, t, dim, {3, 0, -1, 19, 7, 8, 12, -1, 5});
      });
    }
    add("KvWrite", t, "5x2x24", Size::medium, [t](Case& c) { kv_write(c, t, 24, {7, -1, 0, 11, 3}); });
  }
}

}  // namespace

void register_memory_cases() {
  register_column_sums();
  register_sum_squares();
  register_sums_and_norms();
  register_columns();
  register_kv_writes();
}

}  // namespace sinter::kernels::cases
