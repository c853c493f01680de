// Matrix products through cuBLASLt: bias in the epilogue, accumulation by beta = 1, the algorithm chosen by measuring.
//
// cuBLASLt is column-major, our tensors are row-major: c (M, N) row-major is c^T (N, M) column-major, so we ask for
// c^T = op(b)^T op(a)^T with the factors swapped. A row-major (R, C) matrix is a column-major (C, R) one with the same
// leading dimension.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "base/log.h"
#include "core/cuda/check.h"
#include "kernels/cuda/cuda_kernels.h"

namespace sinter::kernels::cuda {
namespace {

#define SINTER_CUBLAS_CHECK(call)                                                                              \
  do {                                                                                                         \
    cublasStatus_t sinter_status_ = (call);                                                                    \
    if (sinter_status_ != CUBLAS_STATUS_SUCCESS) [[unlikely]]                                                  \
      base::fail("cuBLASLt error {} at kernels/cuda/matmul.cc:{} in {}", static_cast<int>(sinter_status_), __LINE__, #call); \
  } while (0)

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int kMaxCandidates = 12;

// Everything the choice of an algorithm depends on.
struct ProductKey {
  int64_t m, n, k;
  base::DType in, out;
  bool transpose_a, transpose_b, accumulate, has_bias, is_scaled;
  int align_a, align_b, align_c;
  auto operator<=>(const ProductKey&) const = default;
};

cudaDataType_t type_of(base::DType dtype) {
  switch (dtype) {
    case base::DType::f32: return CUDA_R_32F;
    case base::DType::bf16: return CUDA_R_16BF;
    case base::DType::f16: return CUDA_R_16F;
    default: base::fail("[matmul] format {} on CUDA; expected f32, bf16 or f16", base::dtype_name(dtype));
  }
}

// The largest power of two up to 256 that divides the address: what algorithms may assume of it.
int alignment_of(const void* p) {
  auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<int>(std::min<uintptr_t>(256, address & (~address + 1)));
}

// Descriptions of one product; freed with it. They live in the table of plans to the end of the program.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, out = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> candidates;
  size_t chosen = 0;
  bool is_measured = false;
};

struct Pointers {
  const void *first, *second, *bias;
  const void* c;
  void* d;
  float alpha, beta;
};

cublasLtHandle_t handle() {
  static cublasLtHandle_t handle = [] {
    cublasLtHandle_t h = nullptr;
    SINTER_CUBLAS_CHECK(cublasLtCreate(&h));
    return h;
  }();
  return handle;
}

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  SINTER_CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)));
}

Plan make_plan(const ProductKey& key) {
  Plan plan;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  if (key.in == base::DType::f32 && options().tf32) compute = CUBLAS_COMPUTE_32F_FAST_TF32;
  SINTER_CUBLAS_CHECK(cublasLtMatmulDescCreate(&plan.operation, compute, CUDA_R_32F));
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (key.has_bias) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(key.out));
  }
  auto layout = [](cublasLtMatrixLayout_t* l, base::DType dtype, int64_t rows, int64_t columns) {
    SINTER_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(l, type_of(dtype), static_cast<uint64_t>(columns),
                                                   static_cast<uint64_t>(rows), columns));
  };
  layout(&plan.first, key.in, key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n);
  layout(&plan.second, key.in, key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k);
  layout(&plan.out, key.out, key.m, key.n);

  cublasLtMatmulPreference_t preference = nullptr;
  SINTER_CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
  auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    SINTER_CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(key.align_b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(key.align_a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(key.align_c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(key.align_c));
  plan.candidates.resize(kMaxCandidates);
  int found = 0;
  cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle(), plan.operation, plan.first, plan.second, plan.out, plan.out,
                                                         preference, kMaxCandidates, plan.candidates.data(), &found);
  cublasLtMatmulPreferenceDestroy(preference);
  SINTER_CHECK(status == CUBLAS_STATUS_SUCCESS && found > 0,
               "[matmul] cuBLASLt has no algorithm for ({}, {}, {}) in {} to {} (status {})", key.m, key.n, key.k,
               base::dtype_name(key.in), base::dtype_name(key.out), static_cast<int>(status));
  plan.candidates.resize(static_cast<size_t>(found));
  return plan;
}

cublasStatus_t run(Stream& stream, Plan& plan, size_t candidate, const Pointers& p) {
  if (p.bias) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  void* workspace = scratch(stream, Scratch::workspace, kWorkspaceBytes);
  return cublasLtMatmul(handle(), plan.operation, &p.alpha, p.first, plan.first, p.second, plan.second, &p.beta, p.c, plan.out,
                        p.d, plan.out, &plan.candidates[candidate].algo, workspace, kWorkspaceBytes,
                        static_cast<cudaStream_t>(stream.native));
}

// Times the candidates on the caller's own data and keeps the fastest. A product that accumulates writes its trials
// elsewhere. This is the one place where the backend waits for the stream: once per shape, before any capture.
void measure(Stream& stream, Plan& plan, Pointers p, size_t out_bytes) {
  plan.is_measured = true;
  if (plan.candidates.size() < 2) return;
  auto native = static_cast<cudaStream_t>(stream.native);
  void* elsewhere = nullptr;
  if (p.beta != 0) {
    if (cudaMalloc(&elsewhere, out_bytes) != cudaSuccess) {
      cudaGetLastError();  // no room to try: keep the library's first choice
      return;
    }
    p.d = elsewhere;
  }
  cudaEvent_t begin = nullptr, end = nullptr;
  SINTER_CUDA_CHECK(cudaEventCreate(&begin));
  SINTER_CUDA_CHECK(cudaEventCreate(&end));
  float best = 1e30f;
  for (size_t i = 0; i < plan.candidates.size(); ++i) {
    float fastest = 1e30f;
    for (int turn = 0; turn < 4; ++turn) {  // the first turn warms up
      SINTER_CUDA_CHECK(cudaEventRecord(begin, native));
      if (run(stream, plan, i, p) != CUBLAS_STATUS_SUCCESS) break;
      SINTER_CUDA_CHECK(cudaEventRecord(end, native));
      SINTER_CUDA_CHECK(cudaEventSynchronize(end));
      float ms = 0;
      SINTER_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
      if (turn > 0) fastest = std::min(fastest, ms);
    }
    if (fastest < best) {
      best = fastest;
      plan.chosen = i;
    }
  }
  SINTER_CUDA_CHECK(cudaEventDestroy(begin));
  SINTER_CUDA_CHECK(cudaEventDestroy(end));
  if (elsewhere) SINTER_CUDA_CHECK(cudaFree(elsewhere));
}

bool is_capturing(const Stream& stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  SINTER_CUDA_CHECK(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.native), &capture));
  return capture != cudaStreamCaptureStatusNone;
}

}  // namespace

void matmul(Stream& stream, const MatmulArgs& args) {
  if (args.group_offsets) {
    grouped_matmul(stream, args);
    return;
  }
  int64_t m = args.c.rows(), n = args.c.size(-1);
  if (m == 0 || n == 0) return;
  int64_t k = args.a.num_elements() / m;
  SINTER_CHECK(args.b.data.num_elements() == n * k, "[matmul] b has {} elements; expected {} x {}",
               args.b.data.num_elements(), n, k);
  SINTER_CHECK(args.a.dtype() == args.b.data.dtype(), "[matmul] a in {} but b in {}; expected one format",
               base::dtype_name(args.a.dtype()), base::dtype_name(args.b.data.dtype()));
  SINTER_CHECK(k > 0, "[matmul] an inner size of 0 for c {}", args.c.shape().to_string());
  SINTER_CHECK(!args.bias || args.bias.dtype() == args.c.dtype(), "[matmul] bias in {} but c in {}; expected one format",
               base::dtype_name(args.bias.dtype()), base::dtype_name(args.c.dtype()));
  const void *a = args.a.raw(), *b = args.b.data.raw();
  ProductKey key{m, n, k, args.a.dtype(), args.c.dtype(), args.transpose_a, args.transpose_b, args.accumulate,
                 static_cast<bool>(args.bias), args.alpha != 1.0f, alignment_of(a), alignment_of(b),
                 alignment_of(args.c.raw())};
  static std::mutex mutex;
  static std::map<ProductKey, Plan> plans;
  std::lock_guard lock(mutex);  // a plan's description carries the bias pointer, so calls take turns
  auto found = plans.find(key);
  if (found == plans.end()) found = plans.emplace(key, make_plan(key)).first;
  Plan& plan = found->second;
  Pointers pointers{b, a, args.bias.raw(), args.c.raw(), args.c.raw(), args.alpha, args.accumulate ? 1.0f : 0.0f};
  if (!plan.is_measured && options().tune && !is_capturing(stream)) measure(stream, plan, pointers, args.c.bytes());
  cublasStatus_t status = run(stream, plan, plan.chosen, pointers);
  for (size_t i = 0; status != CUBLAS_STATUS_SUCCESS && i < plan.candidates.size(); ++i) {
    plan.chosen = i;  // a candidate may refuse at run time; take the next that does not
    status = run(stream, plan, i, pointers);
  }
  SINTER_CHECK(status == CUBLAS_STATUS_SUCCESS, "[matmul] cuBLASLt failed with status {} for ({}, {}, {}) in {}",
               static_cast<int>(status), m, n, k, base::dtype_name(key.in));
}

}  // namespace sinter::kernels::cuda
