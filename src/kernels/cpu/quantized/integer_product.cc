#include "kernels/cpu/quantized/integer_product.h"

#include <algorithm>
#include <cmath>

#include "base/cpu.h"
#include "base/threads.h"
#include "kernels/choices.h"
#include "kernels/cpu/aligned_buffer.h"

namespace sinter::kernels::cpu {
namespace {

float element(const Tensor& t, int64_t i) {
  switch (t.dtype()) {
    case base::DType::bf16:
      return static_cast<float>(t.data<base::bf16>()[i]);
    case base::DType::f16:
      return static_cast<float>(t.data<base::f16>()[i]);
    default:
      return t.data<float>()[i];
  }
}

void set_element(const Tensor& t, int64_t i, float value) {
  switch (t.dtype()) {
    case base::DType::bf16:
      t.data<base::bf16>()[i] = base::bf16(value);
      return;
    case base::DType::f16:
      t.data<base::f16>()[i] = base::f16(value);
      return;
    default:
      t.data<float>()[i] = value;
  }
}

bool is_number_format(base::DType dtype) {
  return dtype == base::DType::f32 || dtype == base::DType::bf16 || dtype == base::DType::f16;
}

// The rows of `a` in 8 bits, in memory that the caller's thread keeps.
RoundedRows round_rows(const Tensor& a) {
  static thread_local AlignedBuffer t_codes, t_scales, t_sums;
  const int64_t M = a.rows(), K = a.size(-1), blocks = K / 32;
  auto* codes = t_codes.reserve_array<int8_t>(std::max<int64_t>(1, M * K));
  auto *scales = t_scales.reserve_array<float>(std::max<int64_t>(1, M * blocks)),
       *sums = t_sums.reserve_array<float>(std::max<int64_t>(1, M * blocks));
  base::parallel_for(M, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> row(a.dtype() == base::DType::f32 ? 0 : static_cast<size_t>(K));
    const auto width = static_cast<int64_t>(base::dtype_bytes(a.dtype()));
    for (int64_t m = begin; m < end; ++m) {
      const float* x = reinterpret_cast<const float*>(a.data<char>() + m * K * width);
      if (!row.empty()) {
        base::convert_elements(a.dtype(), x, base::DType::f32, row.data(), row.size());
        x = row.data();
      }
      round_row(x, K, codes + m * K, scales + m * blocks, sums + m * blocks);
    }
  });
  return {codes, scales, sums, K};
}

}  // namespace

void round_row(const float* x, int64_t columns, int8_t* codes, float* scales, float* sums) {
  for (int64_t b = 0; b < columns / 32; ++b, x += 32, codes += 32) {
    float largest = 0;
    for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float scale = largest / 127.0f, inverse = largest > 0 ? 127.0f / largest : 0.0f;
    int sum = 0;
    for (int i = 0; i < 32; ++i) {
      const int code = static_cast<int>(std::nearbyint(x[i] * inverse));
      codes[i] = static_cast<int8_t>(code);
      sum += code;
    }
    scales[b] = scale;
    sums[b] = scale * static_cast<float>(sum);
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

IntegerPairKernel integer_pair_kernel(base::WeightFormat format) {
  const base::CpuFeatures& cpu = base::cpu_features();
  return cpu.avx512_vnni && cpu.avx512 ? avx512_vnni_pair_kernel(format) : nullptr;
}

bool is_integer_product(const MatmulArgs& args) {
  if (!allows_integer_products() || args.b.is_plain() || !args.transpose_b || args.transpose_a || args.batch != 1)
    return false;
  if (!is_number_format(args.a.dtype()) || !is_number_format(args.c.dtype())) return false;
  return std::all_of(args.b.blocks->parts.begin(), args.b.blocks->parts.end(), [](const core::WeightPart& part) {
    return part.global_scale == 1.0f && portable_integer_kernel(part.format);
  });
}

void integer_matmul(const MatmulArgs& args, int64_t expert) {
  const int64_t M = args.a.rows(), K = args.a.size(-1), stride = args.c.size(-1);
  const RoundedRows rows = round_rows(args.a);
  int64_t first_row = 0;
  for (const core::WeightPart& part : args.b.blocks->parts) {
    const int64_t row_bytes = base::bytes_of(part.format, K);
    const auto* weights = part.data.data<uint8_t>() + expert * part.rows * row_bytes;
    const IntegerRowKernel kernel = integer_kernel(part.format);
    // One row of activations is a matter of memory: rows of the weight one after the other read it faster.
    const IntegerPairKernel pair_kernel = M > 1 ? integer_pair_kernel(part.format) : nullptr;
    auto put = [&](int64_t n, int64_t m, float result) {
      const int64_t column = first_row + n, at = m * stride + args.c_first_column + column;
      float value = args.alpha * result;
      if (args.bias) value += element(args.bias, column);
      if (args.addend) value += args.beta * element(args.addend, at);
      if (args.accumulate) value += element(args.c, at);
      set_element(args.c, at, value);
    };
    // Some rows of the weight at a time, so that they stay in the cache while rows of activations pass.
    const int64_t grain = std::clamp<int64_t>(part.rows / (8 * base::num_threads()), 1, 64);
    base::parallel_for(part.rows, grain, [&](int64_t begin, int64_t end) {
      float results[2 * kPairedRowsAtOnce];
      const int64_t at_once = pair_kernel ? kPairedRowsAtOnce : kRowsAtOnce;
      for (int64_t first = 0; first < M; first += at_once) {
        const int64_t count = std::min(at_once, M - first);
        int64_t n = begin;
        for (; pair_kernel && n + 1 < end; n += 2) {
          pair_kernel(weights + n * row_bytes, row_bytes, rows, first, count, results);
          for (int64_t i = 0; i < count; ++i)
            put(n, first + i, results[2 * i]), put(n + 1, first + i, results[2 * i + 1]);
        }
        for (; n < end; ++n) {
          for (int64_t done = 0; done < count; done += kRowsAtOnce) {
            const int64_t some = std::min(kRowsAtOnce, count - done);
            kernel(weights + n * row_bytes, rows, first + done, some, results);
            for (int64_t i = 0; i < some; ++i) put(n, first + done + i, results[i]);
          }
        }
      }
    });
    first_row += part.rows;
  }
}

}  // namespace sinter::kernels::cpu
