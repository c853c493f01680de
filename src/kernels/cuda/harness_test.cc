// test_cuda: every kernel of the CUDA table against the reference loops, over formats and odd shapes.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

#include "base/rng.h"
#include "kernels/cuda/test_harness.h"

namespace sinter::kernels::cuda_test {
namespace {

int num_passed = 0, num_failed = 0;
uint64_t next_stream = 1;

core::DeviceRuntime& gpu() { return core::runtime({core::DeviceKind::cuda, 0}); }
core::DeviceRuntime& cpu() { return core::runtime({}); }

std::vector<std::byte> to_format(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * base::dtype_bytes(dtype));
  base::convert_elements(DType::f32, values.data(), dtype, bytes.data(), values.size());
  return bytes;
}

std::vector<std::byte> download(const Tensor& t) {
  std::vector<std::byte> bytes(t.bytes());
  gpu().copy_to_host(bytes.data(), t.raw(), bytes.size(), gpu().stream());
  gpu().synchronize(gpu().stream());
  return bytes;
}

}  // namespace

TestOptions& test_options() {
  static TestOptions options;
  return options;
}
bool wants(const std::string& op) {
  return test_options().only.empty() || op.find(test_options().only) != std::string::npos;
}

double rounding_limit(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 4e-3;
    case DType::f16:
      return 6e-4;
    default:
      return 1e-5;
  }
}

int Case::add(Shape shape, DType dtype, std::vector<std::byte> values) {
  Pair pair;
  pair.cpu = Tensor(cpu().allocator(), shape, dtype);
  pair.gpu = Tensor(gpu().allocator(), shape, dtype);
  pair.initial = std::move(values);
  pairs_.push_back(std::move(pair));
  return static_cast<int>(pairs_.size()) - 1;
}
int Case::random(Shape shape, DType dtype, float scale, float shift) {
  base::CounterRng rng{7, next_stream++};
  std::vector<float> values(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = rng.normal(i) * scale + shift;
  return add(shape, dtype, to_format(values, dtype));
}
int Case::uniform(Shape shape, DType dtype, float low, float high) {
  base::CounterRng rng{8, next_stream++};
  std::vector<float> values(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = low + (high - low) * rng.uniform(i);
  return add(shape, dtype, to_format(values, dtype));
}
int Case::integers(Shape shape, std::vector<int32_t> values) {
  std::vector<std::byte> bytes(values.size() * 4);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return add(shape, DType::i32, std::move(bytes));
}
int Case::floats(Shape shape, std::vector<float> values, DType dtype) {
  return add(shape, dtype, to_format(values, dtype));
}
int Case::output(Shape shape, DType dtype) {
  int handle = add(shape, dtype, {});
  pairs_[handle].initial.assign(pairs_[handle].cpu.bytes(), std::byte{0xff});  // NaN in every floating format
  pairs_[handle].is_output = true;
  return handle;
}

void Case::upload() {
  for (Pair& p : pairs_) gpu().copy_to_device(p.gpu.raw(), p.initial.data(), p.initial.size(), gpu().stream());
  gpu().synchronize(gpu().stream());
}

void Case::run(const std::function<void(const KernelTable&, Stream&, const Select& at)>& call) {
  try {
    for (Pair& p : pairs_) std::memcpy(p.cpu.raw(), p.initial.data(), p.initial.size());
    call(*reference_table(), cpu().stream(), [&](int h) { return h < 0 ? Tensor() : pairs_[h].cpu; });
    upload();
    auto on_gpu = [&](int h) { return h < 0 ? Tensor() : pairs_[h].gpu; };
    call(*cuda_table(), gpu().stream(), on_gpu);
    gpu().synchronize(gpu().stream());
    has_run_ = true;
    if (!checks_determinism_) return;
    std::vector<std::vector<std::byte>> first;
    for (Pair& p : pairs_) first.push_back(download(p.gpu));
    upload();
    call(*cuda_table(), gpu().stream(), on_gpu);
    gpu().synchronize(gpu().stream());
    for (size_t i = 0; i < pairs_.size(); ++i) {
      if (download(pairs_[i].gpu) != first[i]) {
        report(("tensor " + std::to_string(i)).c_str(), 0, 0, false, "differs between two equal runs");
      }
    }
  } catch (const std::exception& e) {
    report("run", 0, 0, false, e.what());
  }
}

void Case::report(const char* what, double error, double limit, bool passed, const std::string& note) {
  passed ? ++num_passed : ++num_failed;
  std::printf("%-4s %-24s %-5s %-34s %-10s error %9.2e limit %8.1e %s\n", passed ? "ok" : "FAIL", op_.c_str(),
              std::string(base::dtype_name(dtype_)).c_str(), shape_.c_str(), what, error, limit, note.c_str());
  std::fflush(stdout);
}

void Case::expect_close(int handle, const char* what, double limit) {
  if (!has_run_) return;
  try {
    std::vector<float> got = core::to_host_floats(pairs_[handle].gpu),
                       expected = core::to_host_floats(pairs_[handle].cpu);
    double difference = 0, size = 0, worst = 0;
    size_t worst_at = 0, num_bad = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      double d = static_cast<double>(got[i]) - expected[i];
      if (!std::isfinite(d)) {
        ++num_bad;
        continue;
      }
      difference += d * d;
      size += static_cast<double>(expected[i]) * expected[i];
      if (std::abs(d) > worst) worst = std::abs(d), worst_at = i;
    }
    double error = size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
    bool passed = num_bad == 0 && error <= limit;
    std::string note;
    if (num_bad > 0)
      note = std::to_string(num_bad) + " of " + std::to_string(got.size()) + " not finite or not written";
    if (!passed && num_bad == 0) {
      note =
          fmt::format("worst at {} of {}: got {} expected {}", worst_at, got.size(), got[worst_at], expected[worst_at]);
    }
    report(what, error, limit, passed, note);
  } catch (const std::exception& e) {
    report(what, 0, 0, false, e.what());
  }
}

void Case::expect_equal(int handle, const char* what) {
  if (!has_run_) return;
  std::vector<std::byte> got = download(pairs_[handle].gpu);
  size_t element = base::dtype_bytes(pairs_[handle].cpu.dtype()), num_different = 0, first = 0;
  for (size_t i = 0; i < got.size() / element; ++i) {
    if (std::memcmp(got.data() + i * element, pairs_[handle].cpu.data<std::byte>() + i * element, element) != 0) {
      if (num_different++ == 0) first = i;
    }
  }
  report(what, static_cast<double>(num_different), 0, num_different == 0,
         num_different ? fmt::format("elements differ, the first at {}", first) : "exact");
}

void Case::expect_true(bool holds, const char* what) {
  if (has_run_) report(what, 0, 0, holds, holds ? "" : "does not hold");
}

}  // namespace sinter::kernels::cuda_test

int main(int argc, char** argv) {
  using namespace sinter;
  using namespace sinter::kernels::cuda_test;
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    if (arg == "--small") {
      test_options().small = true;
    } else if (arg == "--only" && i + 1 < argc) {
      test_options().only = argv[++i];
    } else {
      std::fprintf(stderr, "usage: test_cuda [--small] [--only part-of-op-name]\n");
      return 2;
    }
  }
  // Hundreds of small products: measuring algorithms for each would take minutes. SINTER_CUDA_TUNE=1 asks for it.
  setenv("SINTER_CUDA_TUNE", "0", 0);
  setenv("SINTER_CUDA_FUSE", "1", 0);   // the fused products are tested wherever the library has them
  setenv("SINTER_CUDA_FRESH", "1", 0);  // so are prompts that go past the cache
  if (!core::cuda_runtime(0)) {
    std::printf("no GPU: nothing was tested\n");
    return 0;
  }
  std::printf("%s\n", core::runtime({core::DeviceKind::cuda, 0}).description().c_str());
  for (auto test : {test_elementwise, test_norms, test_training, test_loss, test_moe, test_matmul, test_fp8,
                    test_attention, test_serving, test_quantized, test_parts}) {
    try {
      test();
    } catch (const std::exception& e) {
      ++num_failed;
      std::printf("FAIL a test file stopped: %s\n", e.what());
    }
  }
  std::printf("%d passed, %d failed\n", num_passed, num_failed);
  return num_failed == 0 ? 0 : 1;
}
