#include "kernels/cpu/quantized/integer_product.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <memory>

#include "base/cpu.h"
#include "base/error.h"
#include "base/mapped_pages.h"
#include "base/text.h"
#include "base/threads.h"
#include "kernels/choices.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/matmul/derived_parts.h"
#include "kernels/cpu/quantized/integer_strip.h"

namespace sinter::kernels::cpu {
namespace {

// From so many rows of activations on a strip of the weight is packed where none is kept.
constexpr int64_t kPackFrom = 3;

bool is_number_format(base::DType dtype) {
  return dtype == base::DType::f32 || dtype == base::DType::bf16 || dtype == base::DType::f16;
}

// The rows of `a` in 8 bits, in memory that the caller's thread keeps.
RoundedRows round_rows(const Tensor& a) {
  static thread_local AlignedBuffer t_codes, t_scales, t_sums, t_halves;
  const int64_t M = std::max<int64_t>(1, a.rows()), K = a.size(-1), stride = padded_columns(K), blocks = stride / 32;
  auto* codes = t_codes.reserve_array<int8_t>(M * stride);
  auto *scales = t_scales.reserve_array<float>(M * blocks), *sums = t_sums.reserve_array<float>(M * blocks);
  auto* halves = t_halves.reserve_array<int32_t>(M * 2 * blocks);
  base::parallel_for(a.rows(), 1, [&](int64_t begin, int64_t end) {
    std::vector<float> row(a.dtype() == base::DType::f32 ? 0 : static_cast<size_t>(K));
    const auto width = static_cast<int64_t>(base::dtype_bytes(a.dtype()));
    for (int64_t m = begin; m < end; ++m) {
      const float* x = reinterpret_cast<const float*>(a.data<char>() + m * K * width);
      if (!row.empty()) {
        base::convert_elements(a.dtype(), x, base::DType::f32, row.data(), row.size());
        x = row.data();
      }
      round_row(x, K, codes + m * stride, scales + m * blocks, sums + m * blocks, halves + m * 2 * blocks);
    }
  });
  return {codes, scales, sums, halves, K, stride};
}

// Takes products to where they belong: columns [first_column, ...) of c, with what the call adds to them.
class Sink {
 public:
  Sink(const MatmulArgs& args, int64_t first_column) : args_(args), first_column_(first_column) {}

  // Products of row `m` of the activations with `count` rows of the part from row `n` on.
  void put(int64_t m, int64_t n, const float* products, int64_t count) const {
    with_format(args_.c.dtype(), "matmul", [&]<class T>(T) { put_as<T>(m, n, products, count); });
  }

 private:
  template <class T>
  void put_as(int64_t m, int64_t n, const float* products, int64_t count) const {
    const int64_t column = first_column_ + n, at = m * args_.c.size(-1) + args_.c_first_column + column;
    T* c = args_.c.data<T>() + at;
    const bool is_plain = !args_.bias && !args_.addend && !args_.accumulate;
    if (is_plain) {
      for (int64_t i = 0; i < count; ++i) c[i] = T(args_.alpha * products[i]);
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      float value = args_.alpha * products[i];
      if (args_.bias) value += element(args_.bias, column + i);
      if (args_.addend) value += args_.beta * element(args_.addend, at + i);
      if (args_.accumulate) value += static_cast<float>(c[i]);
      c[i] = T(value);
    }
  }
  static float element(const Tensor& t, int64_t i) {
    return with_format(t.dtype(), "matmul", [&]<class T>(T) { return static_cast<float>(t.data<T>()[i]); });
  }

  const MatmulArgs& args_;
  int64_t first_column_;
};

// One part of a weight.
struct Part {
  const core::WeightPart& stored;
  const uint8_t* weights;
  int64_t row_bytes;
};

void multiply_rows(const Part& part, const RoundedRows& rows, int64_t M, const Sink& sink) {
  const IntegerRowKernel kernel = integer_kernel(part.stored.format);
  // Some rows of the weight at a time, so that they stay in the cache while rows of activations pass.
  constexpr int64_t kMostRows = 64;
  const int64_t grain = std::clamp<int64_t>(part.stored.rows / (8 * base::num_threads()), 1, kMostRows);
  base::parallel_for(part.stored.rows, grain, [&](int64_t begin, int64_t end) {
    float results[kRowsAtOnce], products[kRowsAtOnce][kMostRows];
    for (int64_t first = 0; first < M; first += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, M - first);
      for (int64_t n = begin; n < end; ++n) {
        kernel(part.weights + n * part.row_bytes, rows, first, count, results);
        for (int64_t i = 0; i < count; ++i) products[i][n - begin] = results[i];
      }
      for (int64_t i = 0; i < count; ++i) sink.put(first + i, begin, products[i], end - begin);
    }
  });
}

// A part brought into strips once; pages of a mapped file that it lies in are dropped behind.
class KeptStrips final : public core::DerivedWeight {
 public:
  KeptStrips(const core::WeightPart& part, int64_t experts, int64_t columns, const IntegerStripKernel& kernel)
      : strip_bytes_(strip_bytes(part.format, columns)), strips_(part.rows / kPackedRows) {
    const int64_t row_bytes = base::bytes_of(part.format, columns);
    memory_ = make_memory(static_cast<size_t>(experts * strips_ * strip_bytes_));
    uint8_t* to = memory_.get();
    // Some at a time, so that only so much is in memory twice.
    constexpr int64_t kBytesAtOnce = int64_t{1} << 20;
    const int64_t from_bytes = kPackedRows * row_bytes, at_once = std::max<int64_t>(1, kBytesAtOnce / from_bytes);
    const int64_t all = experts * strips_;
    for (int64_t first = 0; first < all; first += at_once) {
      const int64_t count = std::min(at_once, all - first);
      auto* from = part.data.data<uint8_t>() + first * from_bytes;
      base::parallel_for(count, 4, [&](int64_t begin, int64_t end) {
        for (int64_t s = begin; s < end; ++s)
          kernel.pack(from + s * from_bytes, row_bytes, kPackedRows, columns, to + (first + s) * strip_bytes_);
      });
      base::drop_mapped_pages({reinterpret_cast<const std::byte*>(from), static_cast<size_t>(count * from_bytes)});
    }
  }
  const uint8_t* strip(int64_t expert, int64_t s) const {
    return memory_.get() + (expert * strips_ + s) * strip_bytes_;
  }

 private:
  struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
  };
  using Memory = std::unique_ptr<uint8_t, Free>;

  // Huge pages but for the end: a model has many parts, and the rest of a huge page of each would be much.
  static Memory make_memory(size_t bytes) {
    constexpr size_t kHugePage = size_t{2} << 20;
    void* memory = nullptr;
    const int problem = ::posix_memalign(&memory, bytes >= kHugePage ? kHugePage : 64, bytes);
    SINTER_CHECK(problem == 0, "no memory for {} of a weight's strips", base::format_bytes(static_cast<double>(bytes)));
    if (bytes >= kHugePage) ::madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);  // a hint
    return Memory(static_cast<uint8_t*>(memory));
  }

  int64_t strip_bytes_, strips_;
  Memory memory_;
};

// Null: the part is not kept in strips.
const KeptStrips* kept_strips(DerivedParts* derived, const core::WeightBlocks& weight, size_t index,
                              const IntegerStripKernel& kernel) {
  const core::WeightPart& part = weight.parts[index];
  if (!derived || !kernel || !is_strip_small(part.format) || part.rows % kPackedRows != 0) return nullptr;
  std::shared_ptr<core::DerivedWeight>& kept = derived->parts[index];
  if (!kept) kept = std::make_shared<KeptStrips>(part, weight.experts, weight.columns, kernel);
  return dynamic_cast<const KeptStrips*>(kept.get());
}

void multiply_strips(const Part& part, const IntegerStripKernel& kernel, const KeptStrips* kept, int64_t expert,
                     const RoundedRows& rows, int64_t M, const Sink& sink) {
  const int64_t strips = (part.stored.rows + kPackedRows - 1) / kPackedRows;
  // Passes of about the same number of activations.
  const int64_t passes = (M + kPackedActivations - 1) / kPackedActivations;
  constexpr int64_t kMostStrips = 8;
  const int64_t grain = std::clamp<int64_t>(strips / (16 * base::num_threads()), 1, kMostStrips);
  base::parallel_for(strips, grain, [&](int64_t begin, int64_t end) {
    static thread_local AlignedBuffer t_strip;
    float results[kPackedActivations * kPackedRows];
    for (int64_t s = begin; s < end; ++s) {
      const int64_t n = s * kPackedRows, count = std::min(kPackedRows, part.stored.rows - n);
      const void* strip = kept ? kept->strip(expert, s) : nullptr;
      if (!strip) {
        void* room = t_strip.reserve(static_cast<size_t>(strip_bytes(part.stored.format, rows.columns)));
        kernel.pack(part.weights + n * part.row_bytes, part.row_bytes, count, rows.columns, room);
        strip = room;
      }
      for (int64_t p = 0; p < passes; ++p) {
        const int64_t first = p * M / passes, last = (p + 1) * M / passes;
        kernel.multiply(strip, rows, first, last - first, results);
        for (int64_t m = first; m < last; ++m) sink.put(m, n, results + (m - first) * kPackedRows, count);
      }
    }
  });
}

}  // namespace

void round_row(const float* x, int64_t columns, int8_t* codes, float* scales, float* sums, int32_t* halves) {
  const int64_t stride = padded_columns(columns);
  std::fill_n(codes + columns, stride - columns, int8_t{0});
  for (int64_t b = 0; b < stride / 32; ++b, x += 32, codes += 32) {
    int sum[2] = {0, 0};
    float largest = 0;
    if (b < columns / 32) {
      uint32_t top = 0;  // bits of a magnitude are in its order, and those of NaN above all
      for (int i = 0; i < 32; ++i) top = std::max(top, std::bit_cast<uint32_t>(x[i]) & 0x7fffffff);
      largest = std::bit_cast<float>(top);
      const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
      // Adding 1.5 * 2^23 leaves a float's last bit at 1: to nearest, ties to even.
      constexpr float kRound = 12582912.0f;
      for (int i = 0; i < 32; ++i) {
        const int code = std::bit_cast<int>(x[i] * inverse + kRound) - std::bit_cast<int>(kRound);
        codes[i] = static_cast<int8_t>(code);
        sum[i / 16] += code;
      }
    }
    scales[b] = largest / 127.0f;
    sums[b] = scales[b] * static_cast<float>(sum[0] + sum[1]);
    halves[b / 8 * 16 + b % 8] = sum[0], halves[b / 8 * 16 + 8 + b % 8] = sum[1];
  }
}

IntegerRowKernel integer_kernel(base::WeightFormat format) {
  const base::CpuFeatures& cpu = base::cpu_features();
  if (cpu.avx512_vnni && cpu.avx512) {
    if (IntegerRowKernel kernel = avx512_vnni_integer_kernel(format)) return kernel;
  }
  if (cpu.avx2) {
    if (IntegerRowKernel kernel = avx2_integer_kernel(format)) return kernel;
  }
  return portable_integer_kernel(format);
}

IntegerStripKernel integer_strip_kernel(base::WeightFormat format) {
  const base::CpuFeatures& cpu = base::cpu_features();
  return cpu.avx512_vnni && cpu.avx512 ? avx512_vnni_strip_kernel(format) : IntegerStripKernel{};
}

bool is_integer_product(const MatmulArgs& args) {
  if (!allows_integer_products() || args.b.is_plain() || !args.transpose_b || args.transpose_a || args.batch != 1)
    return false;
  if (args.b.columns() < kGroupColumns) return false;
  if (!is_number_format(args.a.dtype()) || !is_number_format(args.c.dtype())) return false;
  return std::all_of(args.b.blocks->parts.begin(), args.b.blocks->parts.end(), [](const core::WeightPart& part) {
    return part.global_scale == 1.0f && has_integer_form(part.format);
  });
}

void integer_matmul(const MatmulArgs& args, int64_t expert) {
  const int64_t M = args.a.rows();
  const RoundedRows rows = round_rows(args.a);
  const core::WeightBlocks& weight = *args.b.blocks;
  DerivedParts* derived = derived_parts(args.b);
  int64_t first_row = 0;
  for (size_t i = 0; i < weight.parts.size(); ++i) {
    const core::WeightPart& stored = weight.parts[i];
    const int64_t row_bytes = base::bytes_of(stored.format, rows.columns);
    const Part part{stored, stored.data.data<uint8_t>() + expert * stored.rows * row_bytes, row_bytes};
    const Sink sink(args, first_row);
    const IntegerStripKernel kernel = integer_strip_kernel(stored.format);
    const KeptStrips* kept = kept_strips(derived, weight, i, kernel);
    if (kept || (kernel && M >= kPackFrom)) {
      multiply_strips(part, kernel, kept, expert, rows, M, sink);
    } else {
      multiply_rows(part, rows, M, sink);
    }
    first_row += stored.rows;
  }
}

}  // namespace sinter::kernels::cpu
