#include "kernels/cases/case.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "base/hash.h"
#include "base/rng.h"
#include "kernels/cases/options.h"

namespace sinter::kernels::cases {
namespace {

core::DeviceRuntime& host() { return core::runtime({}); }
core::DeviceRuntime& device() { return core::runtime(target().device); }

std::vector<std::byte> to_format(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * base::dtype_bytes(dtype));
  base::convert_elements(DType::f32, values.data(), dtype, bytes.data(), values.size());
  return bytes;
}

std::vector<std::byte> download(const Tensor& t) {
  std::vector<std::byte> bytes(t.bytes());
  device().copy_to_host(bytes.data(), t.raw(), bytes.size(), device().stream());
  device().synchronize(device().stream());
  return bytes;
}

// How far `found` is from `expected`.
struct Difference {
  double norm = 0;                // ||found - expected|| / ||expected||
  double element = 0;             // the largest share of what an element may differ by
  size_t worst = 0, num_bad = 0;  // not finite: NaN, or never written
};

Difference difference_of(const std::vector<float>& found, const std::vector<float>& expected, const Limits& limits) {
  Difference result;
  double squares = 0, size = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double d = static_cast<double>(found[i]) - expected[i];
    if (!std::isfinite(d)) {
      ++result.num_bad;
      continue;
    }
    squares += d * d;
    size += static_cast<double>(expected[i]) * expected[i];
  }
  result.norm = size > 0 ? std::sqrt(squares / size) : std::sqrt(squares);
  const double rms = size > 0 ? std::sqrt(size / static_cast<double>(found.size())) : 1;
  for (size_t i = 0; i < found.size(); ++i) {
    const double d = std::abs(static_cast<double>(found[i]) - expected[i]);
    if (d == 0) continue;
    const double share = d / (limits.element * std::abs(expected[i]) + limits.rms * rms);
    if (share > result.element) result.element = share, result.worst = i;
  }
  return result;
}

}  // namespace

Case::Case(std::string name) : name_(std::move(name)) {}

int Case::add(Shape shape, DType dtype, std::vector<std::byte> values) {
  Pair pair;
  pair.reference = Tensor(host().allocator(), shape, dtype);
  pair.target = Tensor(device().allocator(), shape, dtype);
  pair.initial = std::move(values);
  pairs_.push_back(std::move(pair));
  return static_cast<int>(pairs_.size()) - 1;
}
uint64_t Case::next_stream() { return base::hash_text(name_, ++num_streams_); }

int Case::random(Shape shape, DType dtype, float scale, float shift) {
  const base::CounterRng rng{7, next_stream()};
  std::vector<float> values(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = rng.normal(i) * scale + shift;
  return add(shape, dtype, to_format(values, dtype));
}
int Case::uniform(Shape shape, DType dtype, float low, float high) {
  const base::CounterRng rng{8, next_stream()};
  std::vector<float> values(static_cast<size_t>(shape.num_elements()));
  for (size_t i = 0; i < values.size(); ++i) values[i] = low + (high - low) * rng.uniform(i);
  return add(shape, dtype, to_format(values, dtype));
}
int Case::integers(Shape shape, std::vector<int32_t> values) {
  std::vector<std::byte> bytes(values.size() * 4);
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return add(shape, DType::i32, std::move(bytes));
}
int Case::floats(Shape shape, std::vector<float> values, DType dtype) {
  return add(shape, dtype, to_format(values, dtype));
}
int Case::output(Shape shape, DType dtype) {
  const int handle = add(shape, dtype, {});
  Pair& pair = pairs_[static_cast<size_t>(handle)];
  pair.initial.assign(pair.reference.bytes(), std::byte{0xff});  // NaN in every floating format
  return handle;
}

void Case::upload() {
  for (Pair& p : pairs_) device().copy_to_device(p.target.raw(), p.initial.data(), p.initial.size(), device().stream());
  device().synchronize(device().stream());
}

void Case::run(const std::function<void(const KernelTable&, Stream&, const At& at)>& call) {
  for (Pair& p : pairs_) {
    if (!p.initial.empty()) std::memcpy(p.reference.raw(), p.initial.data(), p.initial.size());
  }
  auto in = [&](Tensor Pair::*side) {
    return [this, side](int h) { return h < 0 ? Tensor() : pairs_[static_cast<size_t>(h)].*side; };
  };
  call(*reference_table(), host().stream(), in(&Pair::reference));
  struct Restore {
    ~Restore() {
      if (target().restore) target().restore();
    }
  } restore;
  const int num_runs = bits_may_differ_ && target().has_atomics ? 1 : target().num_runs;
  for (size_t level = 0; level < target().levels.size(); ++level) {
    if (target().set_level) target().set_level(level);
    for (int run = 0; run < num_runs; ++run) {
      if (target().set_run) target().set_run(run);
      upload();
      call(*target().kernels, device().stream(), in(&Pair::target));
      device().synchronize(device().stream());
      for (size_t i = 0; i < pairs_.size(); ++i) {
        std::vector<std::byte> bytes = download(pairs_[i].target);
        if (run == 0) {
          pairs_[i].found.push_back(std::move(bytes));
        } else if (bytes != pairs_[i].found[level]) {
          report(target().levels[level], "bits", false,
                 fmt::format("tensor {} differs in run {} of equal ones", i, run));
        }
      }
    }
  }
}

void Case::report(const std::string& level, const char* what, bool passed, const std::string& text) {
  if (options().prints) {
    std::printf("%-4s %s %s %s: %s\n", passed ? "ok" : "FAIL", name_.c_str(), level.c_str(), what, text.c_str());
  }
  if (!passed) ADD_FAILURE() << (level.empty() ? "" : level + ", ") << what << ": " << text;
}

void Case::expect_close(int handle, const char* what, Result result) {
  expect_close(handle, what, result, pairs_[static_cast<size_t>(handle)].reference.dtype());
}
void Case::expect_close(int handle, const char* what, Result result, DType format) {
  expect_close(handle, what, limits_of(result, format));
}
void Case::expect_close(int handle, const char* what, const Limits& limits) {
  Pair& pair = pairs_[static_cast<size_t>(handle)];
  const std::vector<float> expected = core::to_host_floats(pair.reference);
  for (size_t level = 0; level < pair.found.size(); ++level) {
    ++options().num_compared;
    const std::vector<float> found = core::to_host_floats(
        Tensor::view_of(pair.found[level].data(), pair.reference.shape(), pair.reference.dtype(), {}));
    const Difference d = difference_of(found, expected, limits);
    const bool passed = d.num_bad == 0 && d.norm <= limits.norm && (!target().holds_elements || d.element <= 1);
    std::string text =
        fmt::format("error {:.2e} of at most {:.1e}, an element's {:.2f} of at most 1", d.norm, limits.norm, d.element);
    if (!passed) {
      text += fmt::format("; {} of {} not finite or not written; worst at {}: found {}, expected {}", d.num_bad,
                          found.size(), d.worst, found[d.worst], expected[d.worst]);
    }
    report(target().levels[level], what, passed, text);
  }
}

void Case::expect_equal(int handle, const char* what) {
  Pair& pair = pairs_[static_cast<size_t>(handle)];
  const std::byte* expected = pair.reference.data<std::byte>();
  const size_t bytes = base::dtype_bytes(pair.reference.dtype());
  for (size_t level = 0; level < pair.found.size(); ++level) {
    ++options().num_compared;
    const std::vector<std::byte>& found = pair.found[level];
    size_t num_different = 0, first = 0;
    for (size_t i = 0; i < found.size() / bytes; ++i) {
      if (std::memcmp(found.data() + i * bytes, expected + i * bytes, bytes) != 0 && num_different++ == 0) first = i;
    }
    report(target().levels[level], what, num_different == 0,
           num_different ? fmt::format("{} elements differ, the first at {}", num_different, first) : "equal");
  }
}

void Case::expect_true(bool holds, const char* what) {
  ++options().num_compared;
  report("", what, holds, holds ? "holds" : "does not hold");
}

Options& options() {
  static Options the_options;
  return the_options;
}

namespace {

class CaseTest : public ::testing::Test {
 public:
  CaseTest(std::string name, std::function<void(Case&)> body) : name_(std::move(name)), body_(std::move(body)) {}

 private:
  void TestBody() override {
    Case c(name_);
    body_(c);
  }
  std::string name_;
  std::function<void(Case&)> body_;
};

}  // namespace

void add_claim(const std::string& kernel, const std::string& claim, Size size, const std::function<void(Case&)>& body) {
  if (size > (options().small ? Size::small : target().largest)) return;
  static std::set<std::string> names;
  const std::string name = kernel + "." + claim;
  SINTER_CHECK(names.insert(name).second, "[cases] two cases are called {}", name);
  ::testing::RegisterTest(kernel.c_str(), claim.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [name, body]() -> ::testing::Test* { return new CaseTest(name, body); });
}
void add(const std::string& kernel, DType format, const std::string& shape, Size size,
         const std::function<void(Case&)>& body) {
  add_claim(kernel, fmt::format("{}_{}_EqualsTheReference", base::dtype_name(format), shape), size, body);
}

}  // namespace sinter::kernels::cases
