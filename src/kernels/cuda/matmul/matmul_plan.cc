#include "kernels/cuda/matmul/matmul_plan.h"

#include <cuda_runtime_api.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "core/cuda/check.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/matmul/fused_matmul.h"

namespace sinter::kernels::cuda {
namespace {

#define SINTER_CUBLAS_CHECK(call)                                                                                      \
  do {                                                                                                                 \
    cublasStatus_t sinter_status_ = (call);                                                                            \
    if (sinter_status_ != CUBLAS_STATUS_SUCCESS) [[unlikely]]                                                          \
      base::fail("cuBLASLt error {} at kernels/cuda/matmul/matmul_plan.cc:{} in {}", static_cast<int>(sinter_status_), \
                 __LINE__, #call);                                                                                     \
  } while (0)

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr int kMaxCandidates = 100;

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
  std::vector<int64_t> fields{key.m,
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
  const bool has_scales = key.scales != ProductScales::one;
  if (key.c_stride != key.n || has_scales) fields.push_back(key.c_stride);
  if (has_scales) fields.push_back(static_cast<int64_t>(key.scales));
  return fields;
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
  if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kWorkspaceBytes) {
    base::log_warning(
        "the algorithm that the checkpoint names for a product ({}, {}, {}) in {} does not run here: one is measured "
        "anew, and sums may differ in their last bits",
        key.m, key.n, key.k, base::dtype_name(key.in_a));
    plan.is_measured = false;
    return;
  }
  result.algo = found->second.algorithm;
  plan.candidates = {result};
}

void set_scale_mode(Plan& plan, ProductScales scales) {
  if (scales == ProductScales::one) return;
  const cublasLtMatmulMatrixScale_t mode = scales == ProductScales::rows ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                                         : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
  set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
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
  auto layout = [&](cublasLtMatrixLayout_t* l, base::DType dtype, int64_t rows, int64_t columns, int64_t row_stride) {
    SINTER_CUBLAS_CHECK(cublasLtMatrixLayoutCreate(l, type_of(dtype), static_cast<uint64_t>(columns),
                                                   static_cast<uint64_t>(rows), row_stride));
    if (key.batch == 1) return;
    const auto count = static_cast<int32_t>(key.batch);
    const int64_t stride = rows * row_stride;
    SINTER_CUBLAS_CHECK(
        cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)));
    SINTER_CUBLAS_CHECK(
        cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof(stride)));
  };
  if (base::is_fp8(key.in_a)) {
    set(plan.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(key.is_fast));
    set_scale_mode(plan, key.scales);
    set_scales(plan, p);
  }
  const int64_t b_columns = key.transpose_b ? key.k : key.n, a_columns = key.transpose_a ? key.m : key.k;
  layout(&plan.first, key.in_b, key.transpose_b ? key.n : key.k, b_columns, b_columns);
  layout(&plan.second, key.in_a, key.transpose_a ? key.k : key.m, a_columns, a_columns);
  layout(&plan.out, key.out, key.m, key.n, key.c_stride);
  find_candidates(key, plan);
  bool has_extras = key.has_sums || key.has_gelu || key.has_gelu_gradient;
  plan.runs_apart = has_extras && plan.candidates.empty();
  take_up_choice(key, plan);
  const bool may_be_missing = plan.runs_apart || key.scales != ProductScales::one;
  if (key.scales != ProductScales::one && plan.candidates.empty()) {
    base::log_warning("cuBLASLt {} has no product of fp8 rows with scales for {} for ({}, {}, {}): it goes another way",
                      cublasLtGetVersion(), key.scales == ProductScales::rows ? "rows" : "groups", key.m, key.n, key.k);
  }
  SINTER_CHECK(may_be_missing || !plan.candidates.empty(),
               "[matmul] cuBLASLt has no algorithm for ({}, {}, {}) in {} to {}", key.m, key.n, key.k,
               base::dtype_name(key.in_a), base::dtype_name(key.out));
  return plan;
}

std::map<ProductKey, Plan>& all_plans() {
  static std::map<ProductKey, Plan> plans;
  return plans;
}

// Keeps the fastest candidate and returns the milliseconds of a call.
double choose_fastest(Stream& stream, Plan& plan, const Pointers& p) {
  auto time = [&](size_t candidate, double budget_ms) {  // below 0: it does not run
    return time_calls(stream, budget_ms, [&] { return run(stream, plan, candidate, p) == CUBLAS_STATUS_SUCCESS; });
  };
  // Calls of this length draw so much power that the clock falls: what is faster for a moment may not be so in a step.
  constexpr double kLargeMs = 0.2;
  constexpr size_t kBriefCandidates = 12;
  const bool is_brief = is_measuring_brief();
  if (is_brief && plan.candidates.size() > kBriefCandidates) plan.candidates.resize(kBriefCandidates);
  const bool is_large = !is_brief && time(0, 0.5) > kLargeMs;
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
  if (is_brief) rounds = {{0.3, 1e30, 1}, {1.5, 1.10, 1}};
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

}  // namespace

std::recursive_mutex& plans_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

Plan& plan_for(const ProductKey& key, const Pointers& pointers) {
  std::map<ProductKey, Plan>& plans = all_plans();
  auto found = plans.find(key);
  if (found == plans.end()) found = plans.emplace(key, make_plan(key, pointers)).first;
  return found->second;
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

cublasStatus_t run_first_that_runs(Stream& stream, Plan& plan, const Pointers& p) {
  cublasStatus_t status = run(stream, plan, plan.chosen, p);
  for (size_t i = 0; status != CUBLAS_STATUS_SUCCESS && i < plan.candidates.size(); ++i) {
    plan.chosen = i;
    status = run(stream, plan, i, p);
  }
  return status;
}

int alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<int>(std::min<uintptr_t>(256, address & (~address + 1)));
}

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

namespace {

// What algorithms hold for: they are numbers of one version of the library.
std::string choices_title(core::Device device) {
  return fmt::format("cublasLt {} on {}{}", cublasLtGetVersion(), core::runtime(device).description(),
                     options().tf32 ? " with TF32" : "");
}

}  // namespace

std::vector<std::string> measured_choices(core::Device device) {
  std::lock_guard lock(plans_mutex());
  std::vector<std::string> lines{choices_title(device)};
  for (const auto& [key, plan] : all_plans()) {
    if (!plan.is_measured) continue;
    std::vector<uint64_t> words(8);
    static_assert(sizeof(cublasLtMatmulAlgo_t) == 64);
    if (!plan.runs_apart) std::memcpy(words.data(), &plan.candidates[plan.chosen].algo, 64);
    lines.push_back(
        fmt::format("{} : {} {:x}", fmt::join(fields_of(key), " "), plan.runs_apart ? 1 : 0, fmt::join(words, " ")));
  }
  append_fused_choices(lines);
  return lines;
}

void restore_choices(core::Device device, const std::vector<std::string>& lines) {
  if (lines.front() != choices_title(device)) {
    base::log_warning(
        "the checkpoint's algorithms are of {}, this is {}: they are measured anew, and sums may differ in "
        "their last bits",
        lines.front(), choices_title(device));
    return;
  }
  std::lock_guard lock(plans_mutex());
  for (size_t i = 1; i < lines.size(); ++i) {
    if (restore_fused_choice(lines[i], device)) continue;
    std::istringstream text(lines[i]);
    std::vector<int64_t> fields;
    for (int64_t field = 0; text >> field;) fields.push_back(field);
    text.clear();
    std::string colon;
    int runs_apart = 0;
    text >> colon >> runs_apart >> std::hex;
    uint64_t words[8] = {};
    for (uint64_t& word : words) text >> word;
    SINTER_CHECK(text && colon == ":", "the checkpoint's kernel choice '{}' is not one", lines[i]);
    Choice choice{{}, runs_apart != 0};
    std::memcpy(&choice.algorithm, words, sizeof(words));
    restored_choices()[fields] = choice;
  }
}

}  // namespace sinter::kernels::cuda
