// Cases: one call of a kernel each, built once, run with the same numbers on the reference table and on a target's, and
// compared. The same list runs on every instruction set of the CPU (test_kernels) and on CUDA (test_cuda); every case
// is a test of gtest with a name that is a claim: Matmul.bf16_65x130x64_NT_EqualsTheReference.
//
// Both programs take --small (the smallest shapes only, for compute-sanitizer) and --print (a line per compared tensor)
// beside gtest's own flags.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/cases/tolerances.h"
#include "kernels/table.h"

namespace sinter::kernels::cases {

using base::DType;
using base::Shape;

inline constexpr DType kFormats[] = {DType::f32, DType::bf16, DType::f16};

// How much work a case is for the plain loops, and so who runs it.
enum class Size {
  small,   // everyone, compute-sanitizer too
  medium,  // the CPU and CUDA
  large,   // CUDA
};

// What a program holds against the reference. Defined once in a program: cpu_target.cc, ../cuda/target_test.cc.
struct Target {
  const KernelTable* kernels = nullptr;
  core::Device device;
  bool is_present = true;  // else cases are listed and not run
  Size largest = Size::large;
  bool holds_elements = false;      // to the limits of elements beside those of norms
  std::vector<std::string> levels;  // ways to run a kernel: instruction sets; one without a name on CUDA
  void (*set_level)(size_t) = nullptr;
  int num_runs = 2;                    // equal runs, whose bits must agree; at least this many
  void (*set_run)(int run) = nullptr;  // before a run: the number of threads
  void (*restore)() = nullptr;         // what set_level and set_run changed
  // Whether runs of kernels that add by atomics, or that choose by measuring, may differ in bits
  // (Case::bits_may_differ).
  bool has_atomics = false;
  void (*register_own_cases)() = nullptr;
};
const Target& target();

class Case {
 public:
  // `name`: of the test; random numbers are a function of it.
  explicit Case(std::string name);

  // Handles: indices of tensors in this case; -1 is "not given".
  int random(Shape shape, DType dtype, float scale = 1.0f, float shift = 0.0f);
  int uniform(Shape shape, DType dtype, float low, float high);
  int integers(Shape shape, std::vector<int32_t> values);
  int floats(Shape shape, std::vector<float> values, DType dtype = DType::f32);
  int output(Shape shape, DType dtype);  // poisoned on both sides: every element must be written
  static constexpr int none() { return -1; }

  // `call` builds the arguments with at(handle) and calls the table. Runs the reference once and the target at each of
  // its levels more than once: the bits of all tensors must repeat.
  using At = std::function<Tensor(int)>;
  void run(const std::function<void(const KernelTable&, Stream&, const At& at)>& call);

  // At every level; NaN never passes. `format`: of the table of tolerances, when it is not the tensor's own.
  void expect_close(int handle, const char* what, Result result);
  void expect_close(int handle, const char* what, Result result, DType format);
  void expect_close(int handle, const char* what, const Limits& limits);
  void expect_equal(int handle, const char* what);  // bit for bit
  void expect_true(bool holds, const char* what);
  void bits_may_differ() { bits_may_differ_ = true; }

 private:
  // One tensor on both sides. `initial` is what both hold before a run, `found` what the target leaves at each level.
  struct Pair {
    Tensor reference, target;
    std::vector<std::byte> initial;
    std::vector<std::vector<std::byte>> found;
  };
  int add(Shape shape, DType dtype, std::vector<std::byte> values);
  uint64_t next_stream();
  void upload();
  void report(const std::string& level, const char* what, bool passed, const std::string& text);
  std::string name_;
  uint64_t num_streams_ = 0;
  std::vector<Pair> pairs_;
  bool bits_may_differ_ = false;
};

// Registers a test KERNEL.FORMAT_SHAPE_EqualsTheReference, unless the case is larger than what the program runs.
void add(const std::string& kernel, DType format, const std::string& shape, Size size,
         const std::function<void(Case&)>& body);
// One with a claim of its own.
void add_claim(const std::string& kernel, const std::string& claim, Size size, const std::function<void(Case&)>& body);

// Whether the target has this kernel itself: one that is served by the plain loops is not compared with them.
template <auto Entry>
bool has_own() {
  return target().kernels->*Entry != reference_table()->*Entry;
}
// Whether the kernels are CUDA's, on a GPU or emulated.
inline bool is_own_cuda() { return target().kernels != cpu_table(); }
inline bool is_cuda() { return target().device.kind == core::DeviceKind::cuda; }

void register_elementwise_cases();
void register_embedding_cases();
void register_memory_cases();
void register_norm_cases();
void register_loss_cases();
void register_optimizer_cases();
void register_moe_cases();
void register_matmul_cases();
void register_fused_matmul_cases();
void register_fp8_cases();
void register_attention_cases();
void register_decoding_cases();
void register_parts_cases();
void register_quantized_cases();

}  // namespace sinter::kernels::cases
