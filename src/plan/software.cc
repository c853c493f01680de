#include "plan/software.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text.h"
#include "spec/parameters.h"

namespace sinter::plan {
namespace {

Software sinter() {
  Software s;
  s.name = "sinter";
  s.gated_widths = 3;  // gate, up, product
  s.logit_bytes = 2;
  s.loss_chunk_bytes = static_cast<double>(spec::kLossChunkBytes);
  s.selective_drops_norms = true;
  return s;
}

std::vector<Software> megatrons() {
  Software megatron;
  megatron.name = "megatron";
  megatron.gated_widths = 2;
  megatron.overlaps_tensor_parallel = true;
  megatron.overlaps_pipeline = true;
  megatron.attention_scale = 1.7;  // cuDNN

  Software bridge = megatron;  // Megatron-Bridge of 2025-26
  bridge.name = "megatron-2025";
  bridge.overlaps_expert_parallel = true;
  bridge.sends_tokens_once = true;

  Software adapters = bridge;
  adapters.name = "megatron-lora";
  adapters.freezes_weights = true;

  Software classic;  // 2020-2022: unfused attention, nothing overlapped
  classic.name = "megatron-2021";
  classic.flash_attention = false;
  classic.overlaps_data_parallel = false;

  Software deepspeed = classic;
  deepspeed.name = "megatron-deepspeed";
  return {megatron, bridge, adapters, classic, deepspeed};
}

Software deepspeed_zero3() {
  Software s;  // DeepSpeed of 2021
  s.name = "deepspeed-zero3";
  s.flash_attention = false;
  s.single_rail = true;
  s.gradient_wire_bytes = 2;
  return s;
}

std::vector<Software> nanotrons() {
  Software nanotron;
  nanotron.name = "nanotron";
  nanotron.keeps_rotated = true;
  // Fitted to the memory of every other row of the public sweep; the rest is held against them in check_test.cc.
  nanotron.logit_bytes = 12.8;         // bf16 and fp32 logits, their exponentials and gradient
  nanotron.gradient_copy_bytes = 1.9;  // bf16 gradients beside the fp32 sums
  nanotron.step_bytes_per_parameter = 0.77;
  nanotron.activation_scale = 1.125;
  nanotron.overhead_bytes = 3.3e8;
  nanotron.balances_head = true;      // get_block_compute_costs
  nanotron.overlaps_sharded = false;  // DistributedDataParallel only without ZeRO
  nanotron.zero_all_reduces = true;
  nanotron.bucket_bytes = 25 << 20;

  Software again = nanotron;  // known to gather them again, which shows on 32 nodes already
  again.name = "nanotron-again";

  Software kept = nanotron;  // tp_recompute_allgather off, as in about half of the public sweep's runs
  kept.name = "nanotron-kept";
  kept.keeps_gathered = true;
  kept.activation_scale = 1.0;
  kept.gated_widths = 3.6;
  return {nanotron, again, kept};
}

std::vector<Software> fsdps() {
  Software fsdp;  // PyTorch FSDP: Mosaic, torchtitan
  fsdp.name = "fsdp";
  fsdp.keeps_rotated = true;
  fsdp.logit_bytes = 10;
  fsdp.selective_matmul_share = 0.5;
  fsdp.gradient_wire_bytes = 2;
  fsdp.elementwise_scale = 2.0;

  Software compiled = fsdp;  // torch.compile fuses the element-wise work
  compiled.name = "fsdp-compiled";
  compiled.elementwise_scale = 1.0;
  return {fsdp, compiled};
}

std::vector<Software> make_software() {
  std::vector<Software> all;
  for (const std::vector<Software>& family :
       {std::vector{sinter()}, megatrons(), std::vector{deepspeed_zero3()}, nanotrons(), fsdps()}) {
    all.insert(all.end(), family.begin(), family.end());
  }
  return all;
}

const std::vector<Software>& all_software() {
  static const std::vector<Software> all = make_software();
  return all;
}

}  // namespace

std::vector<std::string> software_names() {
  std::vector<std::string> names;
  for (const Software& s : all_software()) names.push_back(s.name);
  return names;
}

const Software& find_software(const std::string& name) {
  for (const Software& s : all_software()) {
    if (s.name == name) return s;
  }
  base::fail_usage("software '{}' is not known; expected one of {}{}", name, fmt::join(software_names(), ", "),
                   base::did_you_mean(name, software_names()));
}

}  // namespace sinter::plan
