#include "bench/device_bench.h"

#include <algorithm>

#include "bench/report.h"

namespace sinter::bench {

using core::DType;
using core::Tensor;

DeviceBench::DeviceBench(core::Device device) : runtime_(core::runtime(device)), table_(kernels::kernels_for(device)) {}

Tensor DeviceBench::values(core::Shape shape, DType dtype, float scale) {
  constexpr int64_t kBlock = 1 << 18;
  Tensor t(runtime_.allocator(), shape, dtype);
  std::vector<float> block(kBlock);
  uint32_t state = 12345;
  for (float& x : block) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) {
      state = state * 1664525u + 1013904223u;
      sum += static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    }
    x = sum * 1.7f * scale;
  }
  std::vector<std::byte> bytes(kBlock * base::dtype_bytes(dtype));
  base::convert_elements(DType::f32, block.data(), dtype, bytes.data(), kBlock);
  size_t first = std::min(bytes.size(), t.bytes());
  runtime_.copy_to_device(t.raw(), bytes.data(), first, stream());
  runtime_.synchronize(stream());
  for (size_t done = first; done < t.bytes();) {
    size_t piece = std::min(done, t.bytes() - done);
    runtime_.copy_within(t.data<char>() + done, t.raw(), piece, stream());
    done += piece;
  }
  return t;
}

Tensor DeviceBench::integers(int64_t count, const std::function<int32_t(int64_t)>& value) {
  std::vector<int32_t> host(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) host[static_cast<size_t>(i)] = value(i);
  return core::make_tensor<int32_t>(runtime_.allocator(), {count}, host);
}

double DeviceBench::time(const std::function<void()>& call) {
  for (int i = 0; i < 3; ++i) call();
  runtime_.synchronize(stream());
  double begin = now_seconds();
  call();
  runtime_.synchronize(stream());
  int count = std::clamp(static_cast<int>(0.02 / std::max(1e-6, now_seconds() - begin)), 3, 500);
  std::vector<double> seconds;
  for (int batch = 0; batch < 5; ++batch) {
    begin = now_seconds();
    for (int i = 0; i < count; ++i) call();
    runtime_.synchronize(stream());
    seconds.push_back((now_seconds() - begin) / count);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[2];
}

}  // namespace sinter::bench
