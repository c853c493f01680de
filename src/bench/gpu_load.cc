#include "bench/gpu_load.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/rng.h"
#include "bench/random_weights.h"
#include "core/copy_rate.h"
#include "io/tensor_folder.h"
#include "models/weights.h"

namespace sinter::bench {
namespace {

const core::Device kDevice{core::DeviceKind::cuda, 0};

void write_folder(const spec::ModelSpec& spec, const std::string& folder, core::DType dtype) {
  const base::CounterRng rng{41, 2};
  std::vector<float> numbers((size_t{1} << 22) - 33);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = 0.04f * (rng.uniform(i) - 0.5f);
  std::vector<std::byte> bytes(numbers.size() * base::dtype_bytes(dtype));
  base::convert_elements(core::DType::f32, numbers.data(), dtype, bytes.data(), numbers.size());
  io::TensorFolderWriter writer(folder);
  const std::vector<spec::ParameterSpec> table = spec::make_parameter_table(spec);
  auto visit = [&](auto&& body) {
    for (const spec::ParameterSpec& p : table) {
      for (const spec::ParameterPart& part : p.parts) body(part.hf_name, models::part_shape(p, part));
    }
  };
  visit([&](const std::string& name, const std::vector<int64_t>& shape) { writer.declare(name, dtype, shape); });
  visit([&](const std::string& name, const std::vector<int64_t>& shape) {
    size_t left = base::dtype_bytes(dtype);
    for (int64_t n : shape) left *= static_cast<size_t>(n);
    for (; left > 0; left -= std::min(left, bytes.size()))
      writer.write(name, std::span(bytes).first(std::min(left, bytes.size())));
  });
  writer.commit();
}

}  // namespace

Report bench_gpu_load(const Options& options) {
  Report report{.name = "gpu_load",
                .title = "7B from a folder in the page cache to the GPU, in bf16 there",
                .columns = {{"file", "file"},
                            {"gb", "GB", 2},
                            {"seconds", "seconds", 2},
                            {"rate", "GB/s", 1},
                            {"copy_rate", "copy GB/s", 1},
                            {"share", "of copy rate %", 1}},
                .rows = {}};
  if (!core::cuda_runtime(0)) return report;
  const spec::ModelSpec spec = shape_of("7B");
  const double copy_rate = core::host_copy_rate(kDevice);
  for (core::DType dtype : {core::DType::bf16, core::DType::f32}) {
    const std::string name = fmt::format("gpu_load {}", base::dtype_name(dtype));
    if (name.find(options.only) == std::string::npos) continue;
    const std::string folder = std::filesystem::temp_directory_path() / fmt::format("sinter-load-{}", ::getpid());
    base::create_folders(folder);
    try {
      write_folder(spec, folder, dtype);
      double best = 1e300, bytes = 0;
      for (int turn = 0; turn < 2; ++turn) {
        models::ParameterStore store(spec, {.device = kDevice, .compute = core::DType::bf16, .keeps_derived = true});
        core::runtime(kDevice).synchronize(core::runtime(kDevice).stream());
        const double begin = now_seconds();
        const io::TensorFolder tensors(folder);
        models::load_weights(store, spec, tensors);
        core::runtime(kDevice).synchronize(core::runtime(kDevice).stream());
        best = std::min(best, now_seconds() - begin);
        bytes = 0;
        for (const io::TensorEntry& entry : tensors.entries()) bytes += static_cast<double>(entry.bytes.size());
      }
      report.rows.push_back({std::string(base::dtype_name(dtype)), bytes / 1e9, best, bytes / best / 1e9,
                             copy_rate / 1e9, 100 * bytes / best / copy_rate});
    } catch (...) {
      std::filesystem::remove_all(folder);
      throw;
    }
    std::filesystem::remove_all(folder);
  }
  return report;
}

}  // namespace sinter::bench
