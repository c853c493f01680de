// cuBLASLt's products: what describes one, the algorithms it has, and which of them is taken. Choices are measured once
// for each kind of product, and a checkpoint keeps them (kernels/choices.h).
#pragma once
#include <cublasLt.h>

#include <functional>
#include <mutex>
#include <vector>

#include "kernels/cuda/cuda_kernels.h"

namespace sinter::kernels::cuda {

// What codes in fp8 are multiplied by: one number for each factor, one for each row, one for each 128 columns of a row.
enum class ProductScales { one, rows, groups };

// Everything the choice of an algorithm depends on.
struct ProductKey {
  int64_t m, n, k, batch;
  base::DType in_a, in_b, out;
  bool transpose_a, transpose_b, accumulate, has_bias, has_sums, has_gelu, has_gelu_gradient, is_fast;
  int align_a, align_b, align_c;
  int64_t c_stride;  // elements between the rows of c
  ProductScales scales = ProductScales::one;
  auto operator<=>(const ProductKey&) const = default;
};

// Descriptions of one product and its algorithms. They live in the table of plans to the end of the program.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, out = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> candidates;  // empty: the library does not have this
  size_t chosen = 0;
  bool is_measured = false;
  bool runs_apart = false;  // the extras by kernels of their own are faster, or the only way
};

struct Pointers {
  const void *first, *second, *bias, *aux, *first_scale, *second_scale;
  const void* c;
  void* d;
  float alpha, beta;
};

// Held from plan_for() to the end of run(): a plan's description carries pointers of the call, so calls take turns.
std::recursive_mutex& plans_mutex();
// The plan of a product, made when it is new. Plans are never removed, so references stay valid.
Plan& plan_for(const ProductKey& key, const Pointers& pointers);

// Times the candidates on the caller's own data and keeps the fastest; then, for a product with extras, the same done
// apart. A product that accumulates writes its trials elsewhere. Waits for the stream, as every choice by measuring
// does (fused_matmul.h): once per shape, before any capture.
void measure(Stream& stream, Plan& plan, Pointers pointers, size_t out_bytes, const std::function<void(void*)>& apart);

cublasStatus_t run(Stream& stream, Plan& plan, size_t candidate, const Pointers& pointers);
// The chosen candidate; where that refuses at run time, the next that does not, from then on.
cublasStatus_t run_first_that_runs(Stream& stream, Plan& plan, const Pointers& pointers);

// The largest power of two up to 256 that divides an address: what algorithms may assume.
int alignment_of(const void* p);

}  // namespace sinter::kernels::cuda
