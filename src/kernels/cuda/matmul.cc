// Matrix products through cuBLASLt: bias, GELU and its gradient, and a bias's gradient in the epilogue, accumulation by
// beta = 1, the algorithm chosen by measuring.
//
// cuBLASLt is column-major, our tensors are row-major: c (M, N) row-major is c^T (N, M) column-major, so we ask for
// c^T = op(b)^T op(a)^T with the factors swapped. A row-major (R, C) matrix is a column-major (C, R) one with the same
// leading dimension.
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

#include "base/log.h"
#include "core/cuda/check.h"
#include "kernels/choices.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/fused_matmul.h"
#include "kernels/cuda/sm90.h"

namespace sinter::kernels::cuda {
namespace {

#define SINTER_CUBLAS_CHECK(call)                                                                                    \
  do {                                                                                                               \
    cublasStatus_t sinter_status_ = (call);                                                                          \
    if (sinter_status_ != CUBLAS_STATUS_SUCCESS) [[unlikely]]                                                        \
      base::fail("cuBLASLt error {} at kernels/cuda/matmul.cc:{} in {}", static_cast<int>(sinter_status_), __LINE__, \
                 #call);                                                                                             \
  } while (0)

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int kMaxCandidates = 100;

// Everything the choice of an algorithm depends on.
struct ProductKey {
  int64_t m, n, k, batch;
  base::DType in_a, in_b, out;
  bool transpose_a, transpose_b, accumulate, has_bias, has_sums, has_gelu, has_gelu_gradient, is_fast;
  int align_a, align_b, align_c;
  auto operator<=>(const ProductKey&) const = default;
};

cudaDataType_t type_of(base::DType dtype) {
  switch (dtype) {
    case base::DType::f32:
      return CUDA_R_32F;
    case base::DType::bf16:
      return CUDA_R_16BF;
    case base::DType::f16:
      return CUDA_R_16F;
    case base::DType::f8e4m3:
      return CUDA_R_8F_E4M3;
    case base::DType::f8e5m2:
      return CUDA_R_8F_E5M2;
    default:
      base::fail("[matmul] format {} on CUDA; expected f32, bf16, f16 or fp8", base::dtype_name(dtype));
  }
}

cublasLtEpilogue_t epilogue_of(const ProductKey& key) {
  if (key.has_gelu) return key.has_bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  if (key.has_gelu_gradient) return CUBLASLT_EPILOGUE_DGELU;
  // Our a is the library's B: the sums of its columns come with reading it, instead of a pass of their own.
  if (key.has_sums) return CUBLASLT_EPILOGUE_BGRADB;
  return key.has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

// The largest power of two up to 256 that divides the address of every matrix of a batch: what algorithms may assume.
int alignment_of(const Tensor& t, int64_t batch) {
  auto address = reinterpret_cast<uintptr_t>(t.raw());
  if (batch > 1) address |= t.bytes() / static_cast<size_t>(batch);
  return static_cast<int>(std::min<uintptr_t>(256, address & (~address + 1)));
}

// Descriptions of one product and its algorithms. They live in the table of plans to the end of the program.
struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t first = nullptr, second = nullptr, out = nullptr;
  std::vector<cublasLtMatmulHeuristicResult_t> candidates;  // empty: the library does not fuse this
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

void find_candidates(const ProductKey& key, Plan& plan) {
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
  cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle(), plan.operation, plan.first, plan.second, plan.out, plan.out, preference,
                                     kMaxCandidates, plan.candidates.data(), &found);
  cublasLtMatmulPreferenceDestroy(preference);
  plan.candidates.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<size_t>(found) : 0);
}

// Kernels have an option of their own, of which the library offers one setting. Under load another can be faster (by 1
// to 3 % in the large products of Llama 1B, by 7 % in one of GPT-2 1.5B on an H200), so all that it accepts are tried.
void add_options(Plan& plan) {
  constexpr size_t kOffered = 4;  // the library's best
  constexpr uint32_t kMostOptions = 16;
  const size_t offered = std::min(kOffered, plan.candidates.size());
  for (size_t i = 0; i < offered; ++i) {
    cublasLtMatmulAlgo_t algorithm = plan.candidates[i].algo;
    uint32_t last = 0, given = 0;
    size_t written = 0;
    cublasLtMatmulAlgoCapGetAttribute(&algorithm, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &last, sizeof(last), &written);
    cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &given, sizeof(given),
                                         &written);
    for (uint32_t option = 0; option <= std::min(last, kMostOptions); ++option) {
      if (option == given) continue;
      cublasLtMatmulAlgoConfigSetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, &option, sizeof(option));
      cublasLtMatmulHeuristicResult_t result{};
      if (cublasLtMatmulAlgoCheck(handle(), plan.operation, plan.first, plan.second, plan.out, plan.out, &algorithm,
                                  &result) != CUBLAS_STATUS_SUCCESS ||
          result.workspaceSize > kWorkspaceBytes) {
        continue;
      }
      result.algo = algorithm;
      plan.candidates.push_back(result);
    }
  }
}

// A choice that an earlier run made, by the fields of its key.
struct Choice {
  cublasLtMatmulAlgo_t algorithm;
  bool runs_apart;
};
std::map<std::vector<int64_t>, Choice>& restored_choices() {
  static std::map<std::vector<int64_t>, Choice> choices;
  return choices;
}

std::vector<int64_t> fields_of(const ProductKey& key) {
  return {key.m,
          key.n,
          key.k,
          key.batch,
          static_cast<int64_t>(key.in_a),
          static_cast<int64_t>(key.in_b),
          static_cast<int64_t>(key.out),
          key.transpose_a,
          key.transpose_b,
          key.accumulate,
          key.has_bias,
          key.has_sums,
          key.has_gelu,
          key.has_gelu_gradient,
          key.is_fast,
          key.align_a,
          key.align_b,
          key.align_c};
}

// Puts an earlier run's choice in the place of all candidates.
void take_up_choice(const ProductKey& key, Plan& plan) {
  auto found = restored_choices().find(fields_of(key));
  if (found == restored_choices().end()) return;
  plan.runs_apart = found->second.runs_apart;
  plan.is_measured = true;
  if (plan.runs_apart) return;
  cublasLtMatmulHeuristicResult_t result{};
  cublasStatus_t status = cublasLtMatmulAlgoCheck(handle(), plan.operation, plan.first, plan.second, plan.out, plan.out,
                                                  &found->second.algorithm, &result);
  SINTER_CHECK(status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes,
               "[matmul] the algorithm that a checkpoint names for ({}, {}, {}) in {} does not run here", key.m, key.n,
               key.k, base::dtype_name(key.in_a));
  result.algo = found->second.algorithm;
  plan.candidates = {result};
}

void set_scales(Plan& plan, const Pointers& p) {
  set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.first_scale);
  set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.second_scale);
}

Plan make_plan(const ProductKey& key, const Pointers& p) {
  Plan plan;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  if (key.in_a == base::DType::f32 && options().tf32) compute = CUBLAS_COMPUTE_32F_FAST_TF32;
  SINTER_CUBLAS_CHECK(cublasLtMatmulDescCreate(&plan.operation, compute, CUDA_R_32F));
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(key));
  if (key.has_bias || key.has_sums) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(key.out));
  if (key.has_gelu || key.has_gelu_gradient) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.n);
    set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type_of(key.out));
  }
  auto layout = [&](cublasLtMatrixLayout_t* l, base::DType dtype, int64_t rows, int64_t columns) {
    SINTER_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(l, type_of(dtype), static_cast<uint64_t>(columns),
                                                   static_cast<uint64_t>(rows), columns));
    if (key.batch == 1) return;
    const auto count = static_cast<int32_t>(key.batch);
    const int64_t stride = rows * columns;
    SINTER_CUBLAS_CHECK(
        cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
    SINTER_CUBLAS_CHECK(
        cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)));
  };
  if (base::is_fp8(key.in_a)) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(key.is_fast));
    set_scales(plan, p);
  }
  layout(&plan.first, key.in_b, key.transpose_b ? key.n : key.k, key.transpose_b ? key.k : key.n);
  layout(&plan.second, key.in_a, key.transpose_a ? key.k : key.m, key.transpose_a ? key.m : key.k);
  layout(&plan.out, key.out, key.m, key.n);
  find_candidates(key, plan);
  bool has_extras = key.has_sums || key.has_gelu || key.has_gelu_gradient;
  plan.runs_apart = has_extras && plan.candidates.empty();
  take_up_choice(key, plan);
  SINTER_CHECK(plan.runs_apart || !plan.candidates.empty(),
               "[matmul] cuBLASLt has no algorithm for ({}, {}, {}) in {} to {}", key.m, key.n, key.k,
               base::dtype_name(key.in_a), base::dtype_name(key.out));
  return plan;
}

cublasStatus_t run(Stream& stream, Plan& plan, size_t candidate, const Pointers& p) {
  if (p.bias) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
  if (p.aux) set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux);
  if (p.first_scale) set_scales(plan, p);
  void* workspace = scratch(stream, Scratch::workspace, kWorkspaceBytes);
  return cublasLtMatmul(handle(), plan.operation, &p.alpha, p.first, plan.first, p.second, plan.second, &p.beta, p.c,
                        plan.out, p.d, plan.out, &plan.candidates[candidate].algo, workspace, kWorkspaceBytes,
                        static_cast<cudaStream_t>(stream.native));
}

// Keeps the fastest candidate and returns the milliseconds of a call.
double choose_fastest(Stream& stream, Plan& plan, const Pointers& p) {
  auto time = [&](size_t candidate, double budget_ms) {  // below 0: it does not run
    return time_calls(stream, budget_ms, [&] { return run(stream, plan, candidate, p) == CUBLAS_STATUS_SUCCESS; });
  };
  // Calls of this length draw so much power that the clock falls: what is faster for a moment may not be so in a step.
  constexpr double kLargeMs = 0.2;
  const bool is_large = time(0, 0.5) > kLargeMs;
  if (is_large) add_options(plan);
  struct Round {
    double budget_ms, margin;  // of those within this of the best before
    int turns;
  };
  // Briefly, then the better ones again and longer; the best in turns and together as long as the clock takes to follow
  // their power, since differences between them are smaller than those between two runs of one.
  std::vector<Round> rounds{{0.5, 1e30, 1}, {4.0, 1.10, 1}};
  if (is_large) rounds.push_back({15.0, 1.08, 1});
  rounds.push_back({15.0, is_large ? 1.02 : 1.03, 4});
  double best = 1e30;
  std::vector<double> times(plan.candidates.size(), 1e30);  // ms of a call
  for (auto [budget_ms, margin, turns] : rounds) {
    const std::vector<double> before = std::exchange(times, std::vector<double>(times.size(), 0.0));
    for (int turn = 0; turn < turns; ++turn) {
      for (size_t i = 0; i < times.size(); ++i) {
        const bool is_tried = before[i] <= margin * best && times[i] < 1e30;
        const double ms = is_tried ? time(i, budget_ms) : -1;
        times[i] = ms < 0 ? 1e30 : times[i] + ms / turns;
      }
    }
    best = *std::min_element(times.begin(), times.end());
  }
  // The library's own order wins among equals.
  plan.chosen = static_cast<size_t>(
      std::find_if(times.begin(), times.end(), [&](double ms) { return ms <= 1.003 * best; }) - times.begin());
  return best;
}

// Times the candidates on the caller's own data and keeps the fastest; then, for a product with extras, the same done
// apart. A product that accumulates writes its trials elsewhere. This is the one place where the backend waits for the
// stream: once per shape, before any capture.
void measure(Stream& stream, Plan& plan, Pointers p, size_t out_bytes, const std::function<void(void*)>& apart) {
  plan.is_measured = true;
  void* elsewhere = nullptr;
  if (p.beta != 0) {
    if (cudaMalloc(&elsewhere, out_bytes) != cudaSuccess) {
      cudaGetLastError();  // no room to try: keep the library's first choice
      return;
    }
    p.d = elsewhere;
  }
  const double best = choose_fastest(stream, plan, p);
  if (apart) {
    double ms = time_calls(stream, 10.0, [&] {
      apart(p.d);
      return true;
    });
    plan.runs_apart = ms < best;
  }
  if (elsewhere) SINTER_CUDA_CHECK(cudaFree(elsewhere));
}

void check(const MatmulArgs& args, int64_t m, int64_t n, int64_t k) {
  SINTER_CHECK(args.b.data.num_elements() == args.batch * n * k, "[matmul] b has {} elements; expected {} x {} x {}",
               args.b.data.num_elements(), args.batch, n, k);
  const bool is_fp8 = base::is_fp8(args.a.dtype()) && base::is_fp8(args.b.data.dtype());
  SINTER_CHECK(args.a.dtype() == args.b.data.dtype() || is_fp8, "[matmul] a in {} but b in {}; expected one format",
               base::dtype_name(args.a.dtype()), base::dtype_name(args.b.data.dtype()));
  SINTER_CHECK(
      !is_fp8 || (args.transpose_b && !args.transpose_a && args.a_scale && args.b_scale && m % 16 == 0 && n % 16 == 0 &&
                  k % 16 == 0),
      "[matmul] fp8 ({}, {}, {}): needs both scales, rows of both factors along the summed axis and sizes that "
      "are multiples of 16",
      m, n, k);
  SINTER_CHECK(k > 0, "[matmul] an inner size of 0 for c {}", args.c.shape().to_string());
  SINTER_CHECK(!args.bias || args.bias.dtype() == args.c.dtype(),
               "[matmul] bias in {} but c in {}; expected one format", base::dtype_name(args.bias.dtype()),
               base::dtype_name(args.c.dtype()));
  SINTER_CHECK(m > 0, "[matmul] no rows in c");
}

bool has_extras(const FusedMatmulArgs& args) {
  return args.a_sums || args.pre_activation || args.activation_input || args.slope || args.slope_input;
}

// Whether the library may do this call's extras in its epilogue.
bool may_fuse(const FusedMatmulArgs& args) {
  if (options().fuse != Fuse::all || args.slope || args.slope_input) return false;
  const MatmulArgs& p = args.product;
  bool is_16_bit = p.c.dtype() == base::DType::bf16 || p.c.dtype() == base::DType::f16;
  if (args.pre_activation || args.activation_input) {
    return is_16_bit && args.activation == spec::Activation::gelu_tanh && p.c.size(-1) % 8 == 0 && !args.a_sums &&
           !p.accumulate && !(args.pre_activation && args.activation_input) && !(args.activation_input && p.bias);
  }
  // The library's sums come in the format of c and replace what was there: f32 products take them, through scratch.
  return p.transpose_a && !p.bias && p.c.dtype() == base::DType::f32 && p.a.dtype() != base::DType::f32;
}

// The plan of a call, made when it is new. Plans are never removed, so references stay valid.
std::recursive_mutex plans_mutex;  // a plan's description carries pointers of the call, so calls take turns

std::map<ProductKey, Plan>& all_plans() {
  static std::map<ProductKey, Plan> plans;
  return plans;
}

Plan& plan_for(const ProductKey& key, const Pointers& pointers) {
  std::map<ProductKey, Plan>& plans = all_plans();
  auto found = plans.find(key);
  if (found == plans.end()) found = plans.emplace(key, make_plan(key, pointers)).first;
  return found->second;
}

// Runs a product; false when its extras are better done apart (nothing was enqueued then).
bool run_product(Stream& stream, const FusedMatmulArgs& fused) {
  const MatmulArgs& args = fused.product;
  int64_t m = args.c.rows() / args.batch, n = args.c.size(-1);
  if (m == 0 || n == 0) return true;
  int64_t k = args.a.num_elements() / (args.batch * m);
  check(args, m, n, k);
  bool extras = has_extras(fused);
  if (extras && !may_fuse(fused)) return false;
  const void *a = args.a.raw(), *b = args.b.data.raw();
  ProductKey key{m,
                 n,
                 k,
                 args.batch,
                 args.a.dtype(),
                 args.b.data.dtype(),
                 args.c.dtype(),
                 args.transpose_a,
                 args.transpose_b,
                 args.accumulate || args.addend,
                 static_cast<bool>(args.bias),
                 static_cast<bool>(fused.a_sums),
                 static_cast<bool>(fused.pre_activation),
                 static_cast<bool>(fused.activation_input),
                 args.fast_accumulation,
                 alignment_of(args.a, args.batch),
                 alignment_of(args.b.data, args.batch),
                 alignment_of(args.c, args.batch)};
  std::lock_guard lock(plans_mutex);
  void* sums = fused.a_sums ? scratch(stream, Scratch::tokens, sizeof(float) * static_cast<size_t>(m)) : nullptr;
  const void* aux = fused.pre_activation ? fused.pre_activation.raw() : fused.activation_input.raw();
  Pointers pointers{b,
                    a,
                    sums ? sums : args.bias.raw(),
                    aux,
                    args.b_scale.raw(),
                    args.a_scale.raw(),
                    args.c.raw(),
                    args.c.raw(),
                    args.alpha,
                    args.accumulate ? 1.0f : 0.0f};
  if (args.addend) pointers.c = args.addend.raw(), pointers.beta = args.beta;
  Plan& plan = plan_for(key, pointers);
  if (plan.runs_apart) return false;
  if (!plan.is_measured && options().tune && !is_capturing(stream)) {
    FusedMatmulArgs trial = fused;  // its sums go to scratch too
    if (sums) trial.a_sums = Tensor::view_of(sums, {m}, base::DType::f32, args.c.device());
    trial.c_sums = Tensor();  // as much work either way, and they add up
    auto apart = [&](void* d) {
      trial.product.c = Tensor::view_of(d, args.c.shape(), args.c.dtype(), args.c.device());
      matmul_in_parts(*cuda_table(), stream, trial);
    };
    measure(stream, plan, pointers, args.c.bytes(), extras ? apart : std::function<void(void*)>());
    if (plan.runs_apart) return false;
  }
  cublasStatus_t status = run(stream, plan, plan.chosen, pointers);
  for (size_t i = 0; status != CUBLAS_STATUS_SUCCESS && i < plan.candidates.size(); ++i) {
    plan.chosen = i;  // a candidate may refuse at run time; take the next that does not
    status = run(stream, plan, i, pointers);
  }
  SINTER_CHECK(status == CUBLAS_STATUS_SUCCESS, "[matmul] cuBLASLt failed with status {} for ({}, {}, {}) in {}",
               static_cast<int>(status), m, n, k, base::dtype_name(key.in_a));
  if (sums) {
    Tensor fresh = Tensor::view_of(sums, {m}, base::DType::f32, args.c.device());
    axpby(stream, {.x = fresh, .y = fused.a_sums, .alpha = 1.0f, .beta = fused.accumulate_sums ? 1.0f : 0.0f});
  }
  return true;
}

}  // namespace

void matmul(Stream& stream, const MatmulArgs& args) {
  if (args.group_offsets) {
    return sm90_takes_groups(stream, args) ? sm90_grouped_matmul(stream, args) : grouped_matmul(stream, args);
  }
  if (args.bias && own_bias_matmul(stream, args)) return;
  run_product(stream, {.product = args});
}

bool library_fused_matmul(Stream& stream, const FusedMatmulArgs& args) { return run_product(stream, args); }

}  // namespace sinter::kernels::cuda

namespace sinter::kernels {

namespace {

// What algorithms hold for: they are numbers of one version of the library.
std::string choices_title(core::Device device) {
  return fmt::format("cublasLt {} on {}", cublasLtGetVersion(), core::runtime(device).description());
}

}  // namespace

std::vector<std::string> cuda_kernel_choices(core::Device device) {
  std::lock_guard lock(cuda::plans_mutex);
  std::vector<std::string> lines{choices_title(device)};
  for (const auto& [key, plan] : cuda::all_plans()) {
    std::vector<uint64_t> words(8);
    static_assert(sizeof(cublasLtMatmulAlgo_t) == 64);
    if (!plan.runs_apart) std::memcpy(words.data(), &plan.candidates[plan.chosen].algo, 64);
    lines.push_back(fmt::format("{} : {} {:x}", fmt::join(cuda::fields_of(key), " "), plan.runs_apart ? 1 : 0,
                                fmt::join(words, " ")));
  }
  cuda::append_fused_choices(lines);
  return lines;
}

void restore_cuda_kernel_choices(core::Device device, const std::vector<std::string>& lines) {
  if (lines.front() != choices_title(device)) {
    base::log_warning(
        "the checkpoint's algorithms are of {}, this is {}: they are measured anew, and sums may differ in "
        "their last bits",
        lines.front(), choices_title(device));
    return;
  }
  std::lock_guard lock(cuda::plans_mutex);
  for (size_t i = 1; i < lines.size(); ++i) {
    if (cuda::restore_fused_choice(lines[i])) continue;
    std::istringstream text(lines[i]);
    std::vector<int64_t> fields(18);
    for (int64_t& field : fields) text >> field;
    std::string colon;
    int runs_apart = 0;
    text >> colon >> runs_apart >> std::hex;
    uint64_t words[8] = {};
    for (uint64_t& word : words) text >> word;
    SINTER_CHECK(text && colon == ":", "the checkpoint's kernel choice '{}' is not one", lines[i]);
    cuda::Choice choice{{}, runs_apart != 0};
    std::memcpy(&choice.algorithm, words, sizeof(words));
    cuda::restored_choices()[fields] = choice;
  }
}

}  // namespace sinter::kernels
