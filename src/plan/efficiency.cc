// What devices reach in training. Each set was fitted once, by plan/fit, to the published rows named beside it; one set
// serves every program measured on that device. Two programs have sets of their own because their hosts and networks,
// not the device, set their speed: Megatron-DeepSpeed as vTrain measured it (fitted on every 20th row), and nanotron on
// the cluster of the public sweep, fitted on every other row with a loss that gives up on a row at 35 %. There a
// pipeline sends two blocking messages of shapes before each tensor, and from then on every collective takes 0.26 ms
// longer per rank. Runs that gather their tensor-parallel inputs again in the backward pass wait 0.36 ms per rank where
// the group spans nodes (or fills one of 64); those that keep them ("nanotron-kept") do not. On 64 nodes a message
// between stages takes another 0.6 s whatever its size, and on fewer in pipelines without ZeRO of 4 data-parallel ranks
// and 16 micro-batches or more (25 of 25 runs on 2 to 16 nodes). Single rows escape these delays (and are then the
// fastest of their group), others on fewer nodes have them without need; nothing in the sweep tells which.
#include <algorithm>

#include "plan/time.h"

namespace sinter::plan {
namespace {

struct Entry {
  const char* device;    // beginning of the name
  const char* software;  // nullptr = any
  Efficiency efficiency;
  const char* source;  // of the constants
};

Efficiency make(double gemm, double gemm_narrow, double expert, double attention, double memory, LinkEfficiency links) {
  Efficiency e;
  e.gemm = gemm;
  e.gemm_narrow = gemm_narrow;
  e.expert = expert;
  e.attention = attention;
  e.memory = memory;
  e.links = links;
  return e;
}

Efficiency vtrain_a100() {
  Efficiency e = make(0.8165, 0.6, 0.7, 0.388, 0.7993, {0.98, 2.095e-5, 0.98, 1.5e-5});
  e.gemm_start = 2.43e-5;
  e.host_block = 9.882e-4;
  e.host_collective = 8.091e-5;
  e.step_fixed = 1.099e-2;
  return e;
}

Efficiency nanotron_h100() {
  Efficiency e = make(0.617, 0.764, 0.27, 0.367, 0.321, {0.992, 1.237e-5, 0.835, 6.58e-4, 0.154, 0.0202});
  e.gemm_start = 1.84e-5;
  e.kernel = 3.42e-6;
  e.host_block = 1.547e-3;
  e.host_collective = 2.79e-4;
  e.step_fixed = 1.53e-2;
  e.rank_stall = 2.605e-4;
  e.far_stall = 3.55e-4;
  e.message_delay = 0.613;
  e.hidden_share = 0.494;
  e.never_hidden = 0.436;
  e.delay_nodes = 64;
  e.drift_passes = 2048;
  return e;
}

// Runs of the sweep whose memory tells that they gathered inputs again: most of their deep pipelines on 32 nodes wait.
Efficiency nanotron_again_h100() {
  Efficiency e = nanotron_h100();
  e.deep_nodes = 32;
  return e;
}

// Our own trainer as `plan --measure --device cuda` found it on an H200; shares of the loss count cached passes.
Efficiency sinter_h200() {
  Efficiency e = make(0.701, 0.764, 0.27, 0.510, 0.798, {0.90, 5e-6, 0.737, 9.9e-6});
  e.gemm_start = 0;
  e.kernel = 6.4e-6;
  e.gemm_memory = 1e9;  // products are FLOPs alone
  e.attention_memory = 0.584;
  e.loss_memory = 1.60;
  e.optimizer_memory = 0.817;
  return e;
}

const std::vector<Entry>& entries() {
  static const std::vector<Entry> all{
      {"A100-SXM4", "megatron-deepspeed", vtrain_a100(), "fitted to vTrain's rows of Megatron-DeepSpeed on A100"},
      {"H100-SXM5", "nanotron", nanotron_h100(), "fitted to half of nanotron's public sweep on H100"},
      {"H100-SXM5", "nanotron-kept", nanotron_h100(), "fitted to half of nanotron's public sweep on H100"},
      {"H100-SXM5", "nanotron-again", nanotron_again_h100(), "fitted to half of nanotron's public sweep on H100"},
      {"H200-SXM", "sinter", sinter_h200(),
       "measured: our own trainer on one H200; links fitted to published runs on H100"},
      {"A100", nullptr, make(0.780, 0.6, 0.7, 0.388, 0.641, {0.95, 5e-6, 0.690, 7.9e-5}),
       "fitted to published runs on A100 (MosaicML, Narayanan 2021, Korthikanti 2022, Megatron-LM, MegaScale)"},
      {"H100", nullptr, make(0.684, 0.764, 0.27, 0.221, 0.513, {0.90, 5e-6, 0.737, 9.9e-6}),
       "fitted to published runs on H100 (MosaicML, Megatron-Core, torchtitan, Llama 3, dgxc-benchmarking)"},
      {"H200", nullptr, make(0.684, 0.764, 0.27, 0.221, 0.513, {0.90, 5e-6, 0.737, 9.9e-6}),
       "borrowed from published runs on H100 (MosaicML, Megatron-Core, torchtitan, Llama 3, dgxc-benchmarking)"},
      {"GH200", nullptr, make(0.684, 0.764, 0.27, 0.221, 0.513, {0.90, 5e-6, 0.737, 9.9e-6}),
       "borrowed from published runs on H100 (MosaicML, Megatron-Core, torchtitan, Llama 3, dgxc-benchmarking)"},
      {"H800", nullptr, make(0.684, 0.764, 0.27, 0.221, 0.513, {0.90, 5e-6, 0.737, 9.9e-6}),
       "borrowed from published runs on H100 (MosaicML, Megatron-Core, torchtitan, Llama 3, dgxc-benchmarking)"},
      {"B200", nullptr, make(0.410, 0.90, 0.74, 0.300, 0.278, {0.90, 5e-6, 0.70, 1.5e-5}),
       "fitted to published runs on B200 and GB200 (SimuMax, Megatron-Bridge, dgxc-benchmarking)"},
      {"GB200", nullptr, make(0.500, 0.580, 0.92, 0.350, 0.330, {0.90, 5e-6, 0.70, 1.5e-5}),
       "fitted to published runs on B200 and GB200 (SimuMax, Megatron-Bridge, dgxc-benchmarking)"},
      {"B300", nullptr, make(0.500, 0.880, 0.65, 0.300, 0.410, {0.90, 5e-6, 0.70, 1.5e-5}),
       "borrowed from published runs on B200 and GB200"},
      {"V100", nullptr, make(0.78, 0.6, 0.7, 0.30, 0.75, {0.75, 8e-6, 0.70, 3e-5}),
       "fitted to four rows of Megatron-LM 2020 on V100"},
  };
  return all;
}

const Entry* find_entry(const DeviceSpec& device, const std::string& software) {
  for (const Entry& entry : entries()) {
    const bool is_this = device.name.starts_with(entry.device);
    if (is_this && (!entry.software || software == entry.software)) return &entry;
  }
  return nullptr;
}

}  // namespace

std::string efficiency_source(const DeviceSpec& device, const std::string& software, MatrixFormat format) {
  if (device.training[static_cast<size_t>(format)].gemm > 0)
    return "measured on this machine by `sinter plan --measure`";
  const Entry* entry = find_entry(device, software);
  std::string text = entry ? entry->source : "guessed: nothing is published for this device";
  if (software == "sinter" && (!entry || !entry->software)) text += "; `sinter train` was not measured on it";
  return text;
}

Efficiency find_efficiency(const DeviceSpec& device, const std::string& software, MatrixFormat format) {
  if (const TrainingShares& own = device.training[static_cast<size_t>(format)]; own.gemm > 0) {
    Efficiency e = make(own.gemm, own.gemm, 0.7, own.attention, own.memory, {0.8, 6e-6, 0.7, 2e-5});
    e.gemm_start = own.gemm_start;
    e.kernel = own.kernel;
    e.gemm_memory = own.gemm_memory;
    e.gemm_weights = own.gemm_weights;
    e.attention_memory = own.attention_memory;
    e.loss_memory = own.loss;
    e.optimizer_memory = own.optimizer;
    if (device.link_latency > 0) e.links = {1, device.link_latency, 0.7, 2e-5};
    // The cores that compute are those that copy and add what the ranks send.
    if (!device.is_gpu()) e.hidden_share = 0, e.never_hidden = 1;
    return e;
  }
  if (const Entry* entry = find_entry(device, software)) return entry->efficiency;
  // Nothing published: what the device's own curves or best product say, less what training loses against them.
  Efficiency e = make(0.65, 0.6, 0.6, 0.3, 0.65, {0.8, 6e-6, 0.7, 2e-5});
  auto bf16 = static_cast<size_t>(MatrixFormat::bf16);
  if (device.attainable[bf16] > 0 && device.flops[bf16] > 0)
    e.gemm = 0.9 * device.attainable[bf16] / device.flops[bf16];
  if (!device.gemm.empty()) e.gemm = device.gemm.at(1e12);
  if (!device.memory.empty()) e.memory = device.memory.at(1e9);
  return e;
}

}  // namespace sinter::plan
