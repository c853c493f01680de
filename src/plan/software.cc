#include "plan/software.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text.h"

namespace sinter::plan {
namespace {

std::vector<Software> make_software() {
  std::vector<Software> all;
  Software sinter;
  sinter.name = "sinter";
  sinter.gated_widths = 3;  // gate, up, product
  sinter.logit_bytes = 2;
  sinter.loss_chunk_bytes = 570425344;
  sinter.selective_drops_norms = true;
  all.push_back(sinter);

  Software megatron;
  megatron.name = "megatron";
  megatron.gated_widths = 2;
  megatron.overlaps_tensor_parallel = true;
  megatron.overlaps_pipeline = true;
  megatron.attention_scale = 1.7;  // cuDNN
  all.push_back(megatron);

  Software bridge = megatron;  // Megatron-Bridge of 2025-26
  bridge.name = "megatron-2025";
  bridge.overlaps_expert_parallel = true;
  bridge.sends_tokens_once = true;
  all.push_back(bridge);

  Software adapters = bridge;
  adapters.name = "megatron-lora";
  adapters.freezes_weights = true;
  all.push_back(adapters);

  Software classic;  // 2020-2022: unfused attention, nothing overlapped
  classic.name = "megatron-2021";
  classic.flash_attention = false;
  classic.overlaps_data_parallel = false;
  all.push_back(classic);

  Software deepspeed = classic;
  deepspeed.name = "megatron-deepspeed";
  all.push_back(deepspeed);

  Software zero3;  // DeepSpeed of 2021
  zero3.name = "deepspeed-zero3";
  zero3.flash_attention = false;
  zero3.single_rail = true;
  zero3.gradient_wire_bytes = 2;
  all.push_back(zero3);

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
  all.push_back(nanotron);

  Software again = nanotron;  // known to gather them again, which shows on 32 nodes already
  again.name = "nanotron-again";
  all.push_back(again);

  Software kept = nanotron;  // tp_recompute_allgather off, as in about half of the public sweep's runs
  kept.name = "nanotron-kept";
  kept.keeps_gathered = true;
  kept.activation_scale = 1.0;
  kept.gated_widths = 3.6;
  all.push_back(kept);

  Software fsdp;  // PyTorch FSDP: Mosaic, torchtitan
  fsdp.name = "fsdp";
  fsdp.keeps_rotated = true;
  fsdp.logit_bytes = 10;
  fsdp.selective_matmul_share = 0.5;
  fsdp.gradient_wire_bytes = 2;
  fsdp.elementwise_scale = 2.0;
  all.push_back(fsdp);

  Software compiled = fsdp;  // torch.compile fuses the element-wise work
  compiled.name = "fsdp-compiled";
  compiled.elementwise_scale = 1.0;
  all.push_back(compiled);
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
