#include "spec/trained_layouts.h"

#include <fmt/format.h>

#include <algorithm>

#include "spec/local_table.h"

namespace sinter::spec {
namespace {

struct Key {
  std::string text;  // "tp = 4"
  bool is_set = false, is_trained = false;
};

// On GPUs tp, cp, ZeRO-2 and 3 and offload never ran: SINTER_UNTRIED=1 tries them (train/run_plan.cc).
std::vector<Key> keys_of(const ParallelSpec& p, bool on_gpu = false) {
  auto number = [](const char* name, int64_t value, int64_t usual, bool is_trained) {
    return Key{fmt::format("{} = {}", name, value), value != usual, is_trained};
  };
  auto flag = [](const char* name, bool value, bool is_trained) {
    return Key{fmt::format("{} = true", name), value, is_trained};
  };
  return {
      number("dp", p.dp(), 0, true),
      number("replica", p.replica, p.zero == 0 ? p.replica : 1, true),
      number("zero", p.zero, 0, p.zero <= 1 || !on_gpu),
      number("tp", p.tp, 1, !on_gpu),
      flag("sequence_parallel", p.sequence_parallel, true),
      number("pp", p.pp, 1, true),
      {fmt::format("schedule = \"{}\"", pipeline_name(p.schedule)), p.schedule != PipelineKind::one_f_one_b, true},
      number("interleave", p.interleave, 1, true),
      number("cp", p.cp, 1, !on_gpu),
      number("ep", p.ep, 1, p.dp() * p.cp % p.ep == 0),
      flag("offload_optimizer", p.offload.optimizer, !on_gpu),
      flag("offload_gradients", p.offload.gradients, !on_gpu),
      flag("offload_parameters", p.offload.parameters, !on_gpu),
      flag("offload_activations", p.offload.activations, !on_gpu),
  };
}

// The divisor of `whole` nearest below `wanted`.
int64_t divisor_below(int64_t whole, int64_t wanted) {
  while (whole % wanted != 0) --wanted;
  return wanted;
}

}  // namespace

std::string trained_problem(const ParallelSpec& p, const ModelSpec& model) {
  if (p.ep > 1 && p.dp() * p.cp % p.ep != 0) {
    return fmt::format("ep {} must divide dp {} x cp {} (experts are cut inside by tp); the nearest that does is {}",
                       p.ep, p.dp(), p.cp, divisor_below(p.dp() * p.cp, p.ep));
  }
  if (p.tp > 1 && vocab_range(model.vocab_size, p.tp, p.tp - 1).count <= 0) {
    return fmt::format("tp {} leaves a rank none of the {} tokens of the vocabulary; use tp 1", p.tp, model.vocab_size);
  }
  if (p.tp > 1 && model.moe.num_experts > 0 && model.moe.ffn % p.tp != 0) {
    return fmt::format("tp {} does not divide the experts' width {}; the nearest that does is {}", p.tp, model.moe.ffn,
                       divisor_below(model.moe.ffn, p.tp));
  }
  const int least_zero = p.offload.parameters ? 3 : p.offload.gradients ? 2 : p.offload.optimizer ? 1 : 0;
  if (p.dp() > 1 && p.zero < least_zero) {
    return fmt::format("what is offloaded is divided among the dp {} ranks first: zero {} does not, use zero {}",
                       p.dp(), p.zero, least_zero);
  }
  if (p.main_gradients != base::DType::f32 && (p.zero >= 2 || p.offload.has_state()) &&
      (p.dp() > 1 || p.offload.has_state()))
    return fmt::format("gradients in {} are not divided or offloaded: use zero 1, or train.gradients = \"f32\"",
                       base::dtype_name(p.main_gradients));
  if (p.offload.activations && p.recompute != Recompute::full)
    return "offload_activations moves the inputs of blocks, which recompute = \"full\" keeps alone; use that";
  if (p.schedule == PipelineKind::zero_bubble && p.pp > 1 && p.offload.gradients)
    return "zb-h1 keeps gradients of several micro-batches open at once; use schedule 1f1b with offload_gradients";
  if (p.schedule == PipelineKind::zero_bubble && p.pp > 1 && p.zero >= 2 && p.dp() > 1) {
    return fmt::format(
        "zb-h1 keeps gradients of several micro-batches open at once, which zero {} divides after each; the nearest "
        "that works is zero 1",
        p.zero);
  }
  if (p.sequence_parallel && p.micro_batch * p.seq_len / p.cp % p.tp != 0) {
    return fmt::format("sequence parallelism splits {} tokens of a micro-batch among tp {} x cp {} ranks; leave it out",
                       p.micro_batch * p.seq_len, p.tp, p.cp);
  }
  return "";
}

std::vector<std::string> untrained_keys(const ParallelSpec& layout, bool on_gpu) {
  std::vector<std::string> out;
  for (const Key& key : keys_of(layout, on_gpu)) {
    if (key.is_set && !key.is_trained) out.push_back(key.text);
  }
  return out;
}

std::vector<std::string> layout_keys(const ParallelSpec& layout) {
  std::vector<std::string> out;
  for (const Key& key : keys_of(layout)) {
    if (key.is_set) out.push_back(key.text);
  }
  return out;
}

}  // namespace sinter::spec
