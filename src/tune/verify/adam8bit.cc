// AdamW with 8-bit states against bitsandbytes: parameters after every step, codes and scales after the first and last.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/host_copy.h"
#include "kernels/table.h"
#include "train/dynamic_map.h"
#include "tune/verify/case_folder.h"

namespace sinter::tune {

Checks verify_adam8bit(const std::string& folder, const eval::VerifyOptions& options) {
  const nlohmann::ordered_json which = read_case(folder);
  const Tensors t = read_tensors(folder + "/trajectory.safetensors");
  core::DeviceRuntime& device = core::runtime(options.device);
  const kernels::KernelTable& kernels = kernels::kernels_for(options.device);
  auto floats = [&](const Numbers& numbers, size_t begin, size_t count) {
    std::vector<float> values(numbers.values.begin() + static_cast<int64_t>(begin),
                              numbers.values.begin() + static_cast<int64_t>(begin + count));
    return core::make_tensor<float>(device.allocator(), {static_cast<int64_t>(count)}, values);
  };
  auto zeros = [&](int64_t count, core::DType dtype) {
    core::Tensor tensor(device.allocator(), {count}, dtype);
    device.set_zero(tensor.raw(), tensor.bytes(), device.stream());
    return tensor;
  };
  Checks checks;
  for (const bool is_signed : {true, false}) {
    const std::vector<float> map = train::dynamic_map(is_signed);
    checks.push_back(compare(is_signed ? "signed map" : "unsigned map", std::vector<double>(map.begin(), map.end()),
                             get(t, is_signed ? "qmap1" : "qmap2").values, 1e-7));
  }
  const size_t n = get(t, "param_0").values.size();
  const auto count = static_cast<int64_t>(n), blocks = (count + 255) / 256;
  const core::Tensor master = floats(get(t, "param_0"), 0, n), m = zeros(count, core::DType::u8),
                     v = zeros(count, core::DType::u8), m_scales = zeros(blocks, core::DType::f32),
                     v_scales = zeros(blocks, core::DType::f32), control = floats({{2}, {1, 1}}, 0, 2),
                     m_map = floats(get(t, "qmap1"), 0, 256), v_map = floats(get(t, "qmap2"), 0, 256);
  double worst = 0, codes = 0;
  for (int64_t step = 1; step <= 10; ++step) {
    const size_t at = static_cast<size_t>(step - 1) * n;
    kernels.adamw_8bit(device.stream(), {.master = master,
                                         .grad = floats(get(t, "grads"), at, n),
                                         .m = m,
                                         .v = v,
                                         .m_scales = m_scales,
                                         .v_scales = v_scales,
                                         .m_map = m_map,
                                         .v_map = v_map,
                                         .control = control,
                                         .lr = which.at("lr"),
                                         .beta1 = which.at("betas")[0],
                                         .beta2 = which.at("betas")[1],
                                         .eps = which.at("eps"),
                                         .weight_decay = which.at("weight_decay"),
                                         .step = step});
    const std::vector<float> own = core::to_host<float>(master);
    const std::vector<double>& all = get(t, "params").values;
    const std::vector<double> expected(all.begin() + static_cast<int64_t>(at),
                                       all.begin() + static_cast<int64_t>(at + n));
    worst = std::max(worst, compare("", std::vector<double>(own.begin(), own.end()), expected, 1).error);
    const std::string suffix = ".step" + std::to_string(step);
    for (const auto& [name, tensor] : {std::pair{"state1", m}, {"state2", v}}) {
      const auto found = t.find(name + suffix);
      if (found == t.end()) continue;
      const std::vector<uint8_t> mine = core::to_host<uint8_t>(tensor);
      double differing = 0;
      for (size_t i = 0; i < n; ++i) differing += mine[i] == static_cast<uint8_t>(found->second.values[i]) ? 0 : 1;
      codes = std::max(codes, differing / static_cast<double>(n));
    }
  }
  checks.push_back({"parameters of the steps", "largest difference", worst, 2e-5, {}});
  checks.push_back({"codes", "share differing", codes, 1e-3, {}});
  return checks;
}

}  // namespace sinter::tune
