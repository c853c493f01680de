// Cases: fill, axpby, activations with their slopes, dropout, rotations.
#include "kernels/cases/case.h"

namespace sinter::kernels::cases {
namespace {

struct Length {
  int64_t n;
  Size size;
};

void fill(Case& c, DType y, int64_t n, float value) {
  const int out = c.output({n}, y);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) { table.fill(s, {at(out), value}); });
  c.expect_equal(out, "y");
}

void axpby(Case& c, DType x, DType y, int64_t n, float alpha, float beta) {
  const int in = c.random({n}, x), out = beta == 0 ? c.output({n}, y) : c.random({n}, y);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.axpby(s, {.x = at(in), .y = at(out), .alpha = alpha, .beta = beta});
  });
  c.expect_close(out, "y", Result::rounded);
}

void register_fill_and_axpby() {
  struct Factors {
    float alpha, beta;
    const char* name;
  };
  constexpr Length kLengths[] = {{1, Size::small},   {1003, Size::small},   {7, Size::medium},
                                 {65, Size::medium}, {33000, Size::medium}, {100000, Size::medium}};
  for (DType y : kFormats) {
    for (auto [n, size] : kLengths) {
      add("Fill", y, std::to_string(n), size, [=, n = n](Case& c) { fill(c, y, n, 1.5f); });
      add("Fill", y, std::to_string(n) + "_of_a_rounded_value", Size::medium,
          [=, n = n](Case& c) { fill(c, y, n, 0.3f); });
      for (DType x : kFormats) {
        for (auto [alpha, beta, name] : {Factors{2.0f, 0.0f, "twice"}, Factors{2.0f, 0.5f, "twice_and_half"},
                                         Factors{1.0f, 0.0f, "cast"}, Factors{1.5f, -0.5f, "less_half"}}) {
          const bool is_new = name != std::string("twice") && name != std::string("twice_and_half");
          add("Axpby", y, fmt::format("from_{}_{}_{}", base::dtype_name(x), n, name), is_new ? Size::medium : size,
              [=, n = n, alpha = alpha, beta = beta](Case& c) { axpby(c, x, y, n, alpha, beta); });
        }
      }
    }
  }
}

struct Activation {
  spec::Activation kind;
  const char* name;
};
constexpr Activation kActivations[] = {{spec::Activation::silu, "silu"},
                                       {spec::Activation::gelu, "gelu"},
                                       {spec::Activation::gelu_tanh, "gelu_tanh"},
                                       {spec::Activation::relu, "relu"}};

struct Rows {
  int64_t rows, columns;
  Size size;
  bool in_place;
};
constexpr Rows kActivationRows[] = {{37, 64, Size::small, false},    {37, 33, Size::small, true},
                                    {37, 1024, Size::medium, false}, {5, 1, Size::medium, true},
                                    {5, 3, Size::medium, true},      {5, 7, Size::medium, true},
                                    {5, 17, Size::medium, true},     {5, 63, Size::medium, true},
                                    {5, 65, Size::medium, true},     {5, 130, Size::medium, true}};

void activation_forward(Case& c, DType t, spec::Activation kind, bool gated, int64_t rows, int64_t f) {
  const int x = c.random({rows, gated ? 2 * f : f}, t, 2.0f), y = c.output({rows, f}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.activation_forward(s, {kind, gated, at(x), at(y)});
  });
  c.expect_close(y, "y", Result::rounded);
}

void activation_backward(Case& c, DType t, spec::Activation kind, bool gated, const Rows& r) {
  const int64_t f = r.columns, width = gated ? 2 * f : f;
  const int x = c.random({r.rows, width}, t, 2.0f), dy = c.random({r.rows, f}, t),
            dx = r.in_place ? x : c.output({r.rows, width}, t), sums = gated ? -1 : c.random({f}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.activation_backward(s, {kind, gated, at(dy), at(x), at(dx), at(sums)});
  });
  c.expect_close(dx, "dx", Result::rounded);
  if (!gated) c.expect_close(sums, "dx_sums", Result::rounded_sum, t);
}

// Both directions in place, as where a product stands before them.
void slope_forward(Case& c, DType t, spec::Activation kind, int64_t rows, int64_t f) {
  const int x = c.random({rows, f}, t, 2.0f), slope = c.output({rows, f}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.activation_forward(s, {.kind = kind, .gated = false, .x = at(x), .y = at(x), .slope = at(slope)});
  });
  c.expect_close(x, "y", Result::rounded);
  c.expect_close(slope, "slope", Result::rounded);
}
void slope_backward(Case& c, DType t, spec::Activation kind, int64_t rows, int64_t f, bool has_sums) {
  const int dy = c.random({rows, f}, t), given = c.random({rows, f}, t),
            sums = has_sums ? c.random({f}, DType::f32) : -1;
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.activation_backward(
        s, {.kind = kind, .gated = false, .dy = at(dy), .dx = at(dy), .dx_sums = at(sums), .slope = at(given)});
  });
  c.expect_close(dy, "dx", Result::rounded);
  if (has_sums) c.expect_close(sums, "dx_sums", Result::rounded_sum, t);
}

void register_activations() {
  for (DType t : kFormats) {
    for (auto [kind, name] : kActivations) {
      for (const Rows& r : kActivationRows) {
        const std::string shape = fmt::format("{}x{}_{}", r.rows, r.columns, name);
        for (bool gated : {true, false}) {
          const std::string of = shape + (gated ? "_gated" : "");
          add("ActivationForward", t, of, r.size,
              [=, kind = kind](Case& c) { activation_forward(c, t, kind, gated, r.rows, r.columns); });
          add("ActivationBackward", t, of, r.size,
              [=, kind = kind](Case& c) { activation_backward(c, t, kind, gated, r); });
        }
        add("ActivationSlope", t, shape, r.size,
            [=, kind = kind](Case& c) { slope_forward(c, t, kind, r.rows, r.columns); });
        for (bool sums : {true, false}) {
          add("ActivationSlope", t, shape + (sums ? "_back_with_sums" : "_back"), r.size,
              [=, kind = kind](Case& c) { slope_backward(c, t, kind, r.rows, r.columns, sums); });
        }
      }
    }
  }
}

void dropout(Case& c, DType t, int64_t n, uint64_t first) {
  const int x = c.random({n}, t), y = first ? x : c.output({n}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.dropout(s, {0.3f, {11, 0x1234567890ull}, first, at(x), at(y)});
  });
  c.expect_close(y, "y", Result::rounded);
}

void register_dropout() {
  constexpr Length kLengths[] = {{1000, Size::small},  {1001, Size::small},  {50001, Size::medium},
                                 {1, Size::medium},    {5, Size::medium},    {1023, Size::medium},
                                 {1024, Size::medium}, {20001, Size::medium}};
  for (DType t : kFormats) {
    for (auto [n, size] : kLengths) {
      for (uint64_t first : {0ull, 13ull, 3ull, (1ull << 34) - 9, 1ull << 40}) {
        const bool is_old = first == 0 || first == 13;
        add("Dropout", t, fmt::format("{}_from_{}", n, first), is_old ? size : Size::medium,
            [=, n = n](Case& c) { dropout(c, t, n, first); });
      }
    }
  }
}

void rope_table(Case& c, int64_t half) {
  const int64_t tokens = 70;
  std::vector<int32_t> positions, sequence;
  for (int i = 0; i < tokens; ++i) positions.push_back(i * 37), sequence.push_back(i == tokens - 1 ? -1 : i % 3);
  const int p = c.integers({tokens}, positions), q = c.integers({tokens}, sequence);
  const int f = c.uniform({3, half}, DType::f32, 0.0001f, 1.0f), out = c.output({tokens, 2 * half}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.rope_table(s, {at(p), at(q), at(f), 1.1f, at(out)});
  });
  c.expect_close(out, "cos_sin", Result::statistic);
}

void rope(Case& c, DType t, int64_t tokens, int64_t rotated, int64_t dim, bool inverse) {
  const int64_t heads = 5;
  const int x = c.random({tokens, heads * dim}, t), angles = c.uniform({tokens, dim}, DType::f32, -1, 1);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.rope(s, {rotated, dim, at(x), at(angles), inverse});
  });
  c.expect_close(x, "x", Result::rounded);
}

void register_rope() {
  struct Heads {
    int64_t tokens, rotated, dim;
    Size size;
  };
  for (auto [half, size] : {Length{32, Size::small}, Length{5, Size::small}, Length{64, Size::medium}}) {
    if (!has_own<&KernelTable::rope_table>()) break;
    add("RopeTable", DType::f32, fmt::format("70x{}", 2 * half), size, [half = half](Case& c) { rope_table(c, half); });
  }
  for (const Heads& h :
       {Heads{33, 4, 64, Size::small}, Heads{33, 4, 10, Size::small}, Heads{33, 4, 128, Size::medium},
        Heads{19, 3, 2, Size::medium}, Heads{19, 3, 8, Size::medium}, Heads{19, 3, 34, Size::medium},
        Heads{19, 3, 48, Size::medium}, Heads{19, 3, 64, Size::medium}, Heads{19, 3, 128, Size::medium}}) {
    for (DType t : kFormats) {
      for (bool inverse : {false, true}) {
        add("Rope", t, fmt::format("{}x5x{}_{}_rotated{}", h.tokens, h.dim, h.rotated, inverse ? "_back" : ""), h.size,
            [=](Case& c) { rope(c, t, h.tokens, h.rotated, h.dim, inverse); });
      }
    }
  }
}

}  // namespace

void register_elementwise_cases() {
  register_fill_and_axpby();
  register_activations();
  register_dropout();
  register_rope();
}

}  // namespace sinter::kernels::cases
