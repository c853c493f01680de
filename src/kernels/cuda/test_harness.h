// The harness of test_cuda: runs one kernel call with the same values on the reference table and on the CUDA table, and
// prints one line a compared tensor. A failed or throwing case is counted and the program goes on.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/table.h"

namespace sinter::kernels::cuda_test {

using base::DType;
using base::Shape;

// One tensor on both sides. `initial` is what both hold before a run.
struct Pair {
  Tensor cpu, gpu;
  std::vector<std::byte> initial;
  bool is_output = false;
};

class Case {
 public:
  Case(std::string op, DType dtype, std::string shape) : op_(std::move(op)), dtype_(dtype), shape_(std::move(shape)) {}

  // Handles: indices of tensors in this case; -1 is "not given".
  int random(Shape shape, DType dtype, float scale = 1.0f, float shift = 0.0f);
  int uniform(Shape shape, DType dtype, float low, float high);
  int integers(Shape shape, std::vector<int32_t> values);
  int floats(Shape shape, std::vector<float> values, DType dtype = DType::f32);
  int output(Shape shape, DType dtype);  // poisoned on both sides: every element must be written
  static constexpr int none() { return -1; }

  // `call` builds the arguments with at(handle) and calls the table. Runs the reference, then CUDA twice.
  using Select = std::function<Tensor(int)>;
  void run(const std::function<void(const KernelTable&, Stream&, const Select& at)>& call);

  // ||gpu - reference|| / ||reference|| must not exceed the limit; NaN never passes.
  void expect_close(int handle, const char* what, double limit);
  void expect_equal(int handle, const char* what);  // bit for bit
  void expect_true(bool holds, const char* what);
  void skip_determinism() { checks_determinism_ = false; }

 private:
  int add(Shape shape, DType dtype, std::vector<std::byte> values);
  void upload();
  void report(const char* what, double error, double limit, bool passed, const std::string& note = "");
  std::string op_;
  DType dtype_;
  std::string shape_;
  std::vector<Pair> pairs_;
  bool has_run_ = false, checks_determinism_ = true;
};

struct TestOptions {
  bool small = false;  // smallest shapes only, for compute-sanitizer
  std::string only;    // run cases whose op contains this
};
TestOptions& test_options();
bool wants(const std::string& op);

inline constexpr DType kFormats[] = {DType::f32, DType::bf16, DType::f16};
// Error of rounding results to a format, with some room.
double rounding_limit(DType dtype);

// Files of tests; each runs its cases.
void test_elementwise();
void test_norms();
void test_matmul();
void test_attention();
void test_moe();
void test_training();
void test_loss();
void test_fp8();
void test_serving();
void test_quantized();
void test_parts();

}  // namespace sinter::kernels::cuda_test
