// Cases: weights in blocks and codes, as plain numbers and in products of few rows that read them as they are.
#include <cmath>
#include <cstring>

#include "base/rng.h"
#include "kernels/cases/case.h"
#include "kernels/fused.h"

namespace sinter::kernels::cases {
namespace {

using base::WeightFormat;

// Rows of one format; scales that stand apart have `group` columns (0: the format's own block).
struct Part {
  WeightFormat format;
  int64_t rows, group = 0;
  bool has_zeros = false, has_permutation = false;
};

// Random bytes whose scales are ordinary numbers: halves near 2^-7, e8m0 near 1.
std::vector<uint8_t> random_blocks(WeightFormat format, int64_t elements, uint64_t stream) {
  const base::WeightFormatInfo& info = base::info_of(format);
  std::vector<uint8_t> bytes(static_cast<size_t>(base::bytes_of(format, elements)));
  const base::CounterRng rng{31, stream};
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(rng.bits(i));
  auto set_half = [&](size_t at) { bytes[at + 1] = static_cast<uint8_t>(0x20 | (bytes[at + 1] & 0x03)); };
  if (info.scales == base::WeightScales::apart) {
    for (uint8_t& code : bytes) code &= format == WeightFormat::fp8_e4m3 ? 0xbf : 0xff;  // no NaN
    return bytes;
  }
  for (size_t b = 0; b < bytes.size(); b += static_cast<size_t>(info.block_bytes)) {
    switch (format) {
      case WeightFormat::mxfp4:
        bytes[b] = static_cast<uint8_t>(120 + bytes[b] % 5);
        break;
      case WeightFormat::q6_k:
        set_half(b + 208);
        break;
      case WeightFormat::q4_k:
      case WeightFormat::q5_k:
      case WeightFormat::q4_1:
      case WeightFormat::q5_1:
        set_half(b + 2);
        [[fallthrough]];
      default:
        set_half(b);
    }
  }
  return bytes;
}

// A weight of several parts on both sides; its tensors belong to the case.
class Weight {
 public:
  Weight(Case& c, std::vector<Part> parts, int64_t columns, DType plain = DType::f32)
      : parts_(std::move(parts)), columns_(columns) {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      rows_ += part.rows;
      Handles h;
      if (part.format == WeightFormat::plain) {
        h.data = c.random({1, part.rows, columns}, plain);
        handles_.push_back(h);
        continue;
      }
      std::vector<uint8_t> bytes = random_blocks(part.format, part.rows * columns, 100 + i + next_++);
      std::vector<int32_t> words(bytes.size() / 4);
      std::memcpy(words.data(), bytes.data(), words.size() * 4);
      h.data = c.integers({static_cast<int64_t>(words.size())}, words);
      const base::WeightFormatInfo& info = base::info_of(part.format);
      if (info.scales == base::WeightScales::apart) {
        const int64_t group = part.group > 0 ? part.group : info.block_elements, groups = (columns + group - 1) / group;
        h.scales = c.uniform({1, part.rows, groups}, DType::f32, 0.01f, 0.02f);
        if (part.has_zeros) h.zeros = c.uniform({1, part.rows, groups}, DType::f32, 1.0f, 15.0f);
        if (part.has_permutation) {
          std::vector<int32_t> order;
          for (int64_t k = 0; k < columns; ++k) order.push_back(static_cast<int32_t>(k * 7 % groups));
          h.permutation = c.integers({columns}, order);
        }
      }
      handles_.push_back(h);
    }
  }
  int64_t rows() const { return rows_; }
  core::WeightView view(const Case::At& at) const {
    auto blocks = std::make_shared<core::WeightBlocks>();
    blocks->rows = rows_, blocks->columns = columns_;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Part& p = parts_[i];
      core::WeightPart part{.format = p.format, .rows = p.rows, .group = p.group};
      part.data = at(handles_[i].data);
      if (p.format != WeightFormat::plain) {
        part.data = Tensor::view_of(part.data.raw(), {1, static_cast<int64_t>(part.data.bytes())}, DType::u8,
                                    part.data.device());
      }
      part.scales = at(handles_[i].scales), part.zeros = at(handles_[i].zeros);
      part.permutation = at(handles_[i].permutation);
      part.global_scale = i == 1 ? 0.5f : 1.0f;
      blocks->parts.push_back(part);
    }
    core::WeightView weight;
    weight.blocks = blocks;
    return weight;
  }

 private:
  struct Handles {
    int data = -1, scales = -1, zeros = -1, permutation = -1;
  };
  std::vector<Part> parts_;
  std::vector<Handles> handles_;
  int64_t columns_, rows_ = 0;
  static inline uint64_t next_ = 0;
};

std::string name_of_parts(const std::vector<Part>& parts) {
  std::string name;
  for (const Part& part : parts) name += (name.empty() ? "" : "_") + std::string(base::name_of(part.format));
  return name;
}

void dequantized(Case& c, DType t, const std::vector<Part>& parts, int64_t columns) {
  const Weight weight(c, parts, columns, DType::bf16);
  std::vector<int32_t> picked;
  for (int32_t i = 0; i < 9; ++i) picked.push_back(static_cast<int32_t>(i * 5 % weight.rows()));
  int whole = c.output({weight.rows(), columns}, t), some = c.output({9, columns}, t), rows = c.integers({9}, picked);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.dequantize(s, {.weight = weight.view(at), .y = at(whole)});
    table.dequantize(s, {.weight = weight.view(at), .rows = at(rows), .y = at(some)});
  });
  c.expect_close(whole, "all", Result::rounded);
  c.expect_close(some, "rows", Result::rounded);
}

enum class Extra { none, bias_and_addend, f32_result };

// `limits`: of c; not given, those of weights rounded to t.
void product(Case& c, DType t, int64_t m, const std::vector<Part>& parts, int64_t k, Extra extra,
             const Limits& limits = {}) {
  const DType out = extra == Extra::f32_result ? DType::f32 : t;
  const bool has_bias = extra == Extra::bias_and_addend;
  const Weight weight(c, parts, k);
  const int64_t n = weight.rows();
  int a = c.random({m, k}, t), y = c.output({m, n}, out), bias = has_bias ? c.random({n}, t) : -1,
      addend = has_bias ? c.random({m, n}, t) : -1;
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    MatmulArgs args;
    args.a = at(a), args.b = weight.view(at), args.c = at(y), args.bias = at(bias), args.addend = at(addend);
    args.transpose_b = true;
    table.matmul(s, args);
  });
  if (limits.norm > 0) return c.expect_close(y, "c", limits);
  c.expect_close(y, "c", Result::rounded_weights, t);
}

// What training on a frozen weight needs: dx = dy w.
void input_gradient(Case& c, DType t, const std::vector<Part>& parts, int64_t k) {
  const Weight weight(c, parts, k);
  int dy = c.random({24, weight.rows()}, t), dx = c.output({24, k}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    MatmulArgs args;
    args.a = at(dy), args.b = weight.view(at), args.c = at(dx);
    table.matmul(s, args);
  });
  c.expect_close(dx, "dx", Result::rounded);
}

void gated(Case& c, DType t, int64_t m, WeightFormat format, int64_t ffn, int64_t k) {
  const Weight weight(c, {{format, ffn}, {format, ffn}}, k);
  int a = c.random({m, k}, t), y = c.output({m, ffn}, t), pre = c.output({m, 2 * ffn}, t);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    FusedMatmulArgs args;
    args.product.a = at(a), args.product.b = weight.view(at), args.product.c = at(y), args.product.transpose_b = true;
    args.activation = spec::Activation::silu, args.pre_activation = at(pre), args.gated = true;
    fused_matmul(table, s, args);
  });
  c.expect_close(pre, "pre", Result::rounded);
  c.expect_close(y, "c", Limits{3 * limits_of(Result::rounded, t).norm, 1e9, 1e9});
}

void rotated(Case& c, DType t, int64_t m, const std::vector<Part>& parts, int64_t dim, int64_t k) {
  const Weight weight(c, parts, k);
  const int64_t n = weight.rows();
  int a = c.random({m, k}, t), y = c.output({m, n}, t), angles = c.uniform({m, dim}, DType::f32, -1, 1);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    rotated_matmul(
        table, s,
        {.product = {.a = at(a), .b = weight.view(at), .c = at(y), .transpose_b = true},
         .rope = {
             .num_rotated = n / dim - parts.back().rows / dim, .head_dim = dim, .x = at(y), .cos_sin = at(angles)}});
  });
  c.expect_close(y, "c", Limits{2 * limits_of(Result::rounded, t).norm, 1e9, 1e9});
}

void add_dequantized(DType t, const std::vector<Part>& parts, int64_t columns, const char* more = "") {
  add("Dequantize", t, fmt::format("{}_of_{}_columns{}", name_of_parts(parts), columns, more), Size::small,
      [=](Case& c) { dequantized(c, t, parts, columns); });
}
void add_product(DType t, int64_t m, const std::vector<Part>& parts, int64_t k, Size size = Size::small,
                 const char* more = "") {
  const std::string shape = fmt::format("{}_rows_{}_k_{}{}", m, name_of_parts(parts), k, more);
  add("QuantizedProduct", t, shape, size, [=](Case& c) { product(c, t, m, parts, k, Extra::none); });
  if (m > 16) return;
  add("QuantizedProduct", t, shape + "_bias_addend", size,
      [=](Case& c) { product(c, t, m, parts, k, Extra::bias_and_addend); });
  add("QuantizedProduct", t, shape + "_to_f32", size, [=](Case& c) { product(c, t, m, parts, k, Extra::f32_result); });
}

void register_dequantized() {
  using enum WeightFormat;
  for (DType t : kFormats) {
    for (WeightFormat f : {q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, mxfp4}) add_dequantized(t, {{f, 11}}, 512);
    for (WeightFormat f : {int4, int8, nf4, fp4, fp8_e4m3})
      add_dequantized(t, {{f, 12, 64}, {plain, 3}, {f, 5, 128}}, 256);
    add_dequantized(t, {{int4, 8, 32, true, true}, {int8, 9, 128, true}}, 256, "_zeros_permuted");
  }
}

// Rows are rounded to fp8 as well: three bits behind the point, evenly spread errors of up to 1/16 (their root mean
// square is 2.6 % at most).
void register_fp8_rows(DType t) {
  constexpr Limits kRounded{4e-2, 1e9, 1e9};
  struct Shape {
    int64_t m, k, group;
    std::vector<int64_t> rows;
    Size size;
  };
  for (const Shape& s : {Shape{17, 256, 256, {64, 32}, Size::small}, Shape{40, 384, 128, {64, 16}, Size::small},
                         Shape{130, 1024, 1024, {256, 64, 64}, Size::large}, Shape{33, 4096, 128, {512}, Size::large},
                         Shape{512, 2048, 2048, {4096}, Size::large}}) {
    std::vector<Part> parts;
    for (int64_t rows : s.rows) parts.push_back({WeightFormat::fp8_e4m3, rows, s.group});
    const std::string shape = fmt::format("{}_rows_{}_parts_k_{}_groups_of_{}", s.m, parts.size(), s.k, s.group);
    for (const auto& [extra, name] :
         {std::pair{Extra::none, ""}, {Extra::bias_and_addend, "_bias_addend"}, {Extra::f32_result, "_to_f32"}}) {
      add("Fp8Rows", t, shape + name, s.size,
          [=, extra = extra](Case& c) { product(c, t, s.m, parts, s.k, extra, kRounded); });
    }
  }
}

void register_products(DType t) {
  using enum WeightFormat;
  // Columns that are no whole turn, rows that begin anywhere.
  for (WeightFormat f : {q8_0, q4_0, mxfp4, int4, int8, nf4, fp4, fp8_e4m3}) {
    const int64_t group = base::info_of(f).scales == base::WeightScales::apart ? 32 : 0;
    for (int64_t m : {1, 9}) add_product(t, m, {{f, 40, group}}, 352);
    for (int64_t m : {3, 16, 17, 64}) add_product(t, m, {{f, 64, group}, {f, 32, group}}, 4096, Size::large);
  }
  for (WeightFormat f : {q4_k, q5_k, q6_k}) {
    for (int64_t m : {1, 9}) add_product(t, m, {{f, 40}}, 768);
    for (int64_t m : {2, 8, 33, 64}) add_product(t, m, {{f, 64}, {f, 32}}, 4864, Size::large);
  }
  add_product(t, 5, {{int4, 48, 128, true}, {int4, 16, 64, true}}, 512, Size::small, "_zeros");
  add_product(t, 5, {{q4_k, 64}, {q4_k, 16}, {q6_k, 16}}, 512);  // as mixes have Q, K and V
  add_product(t, 5, {{q8_0, 8}, {q6_k, 8}}, 256);                // two formats in a block: not that kernel's
  add_product(t, 5, {{int4, 16, 32, true, true}}, 256, Size::small, "_permuted");  // not that kernel's either
  for (const auto& [parts, k] : {std::pair{std::vector<Part>{{nf4, 64, 64}, {nf4, 32, 64}}, int64_t{256}},
                                 {std::vector<Part>{{q4_k, 64}}, int64_t{512}}}) {
    add("QuantizedProduct", t, fmt::format("{}_k_{}_gradient_of_the_input", name_of_parts(parts), k), Size::small,
        [t, parts = parts, k = k](Case& c) { input_gradient(c, t, parts, k); });
  }
  for (WeightFormat f : {q4_k, q8_0}) {
    for (auto [m, ffn] : {std::pair<int64_t, int64_t>{1, 48}, {12, 64}})
      add("QuantizedProduct", t, fmt::format("{}_rows_{}_gated", m, base::name_of(f)), Size::small,
          [t, f, m = m, ffn = ffn](Case& c) { gated(c, t, m, f, ffn, 512); });
  }
  add("QuantizedProduct", t, "1_rows_q4_k_q6_k_rotated", Size::small, [t](Case& c) {
    rotated(c, t, 1, {{q4_k, 128}, {q4_k, 64}, {q6_k, 64}}, 64, 512);
  });
  add("QuantizedProduct", t, "7_rows_nf4_rotated", Size::small, [t](Case& c) {
    rotated(c, t, 7, {{nf4, 64}, {nf4, 32}, {nf4, 32}}, 16, 512);
  });
}

}  // namespace

void register_quantized_cases() {
  register_dequantized();
  if (!is_own_cuda()) return;  // the CPU's have tests of their own (cpu/quantized)
  for (DType t : {DType::bf16, DType::f16}) {
    register_products(t);
    register_fp8_rows(t);
  }
}

}  // namespace sinter::kernels::cases
