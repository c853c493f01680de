#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plan/check/check.h"
#include "plan/flops.h"
#include "plan/memory.h"
#include "plan/search.h"
#include "plan/training_plan.h"

namespace sinter::plan {
namespace {

double at(const std::map<std::string, double>& values, const char* key) {
  auto found = values.find(key);
  return found == values.end() ? 0 : found->second;
}

}  // namespace

FlopBasis flop_basis(const ModelShape& model) {
  FlopBasis basis;
  basis.active_parameters = static_cast<double>(model.active_parameters());
  basis.embedding_parameters = static_cast<double>(model.embedding_parameters);
  basis.position_parameters = static_cast<double>(model.position_parameters);
  basis.head_parameters = static_cast<double>(model.head_parameters);
  basis.head_matrix = static_cast<double>(model.hidden * model.vocab * (1 + model.num_mtp));
  basis.layer_matrices = static_cast<double>(model.matmul_parameters()) - basis.head_matrix;
  basis.num_layers = static_cast<double>(model.num_layers);
  basis.attention_width = static_cast<double>(model.qk_width() + model.v_width()) / 2;
  basis.tied_head = model.tied_head;
  bool any_window = false;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    basis.windows.push_back(model.block(layer).window);
    any_window = any_window || model.block(layer).window > 0;
  }
  if (!any_window) basis.windows.clear();
  return basis;
}

std::string convention_of(const CheckRow& row, bool hardware) {
  const std::string& words = row.convention;
  auto has = [&](const char* part) { return words.find(part) != std::string::npos; };
  if (has("96*B")) return hardware ? "sc21" : "dgxc";
  if (has("72BLsh")) return "dgxc";
  if (has("Megatron num_floating")) return "megatron";
  if (has("6*N_matmul")) return "dgxc";
  if (has("6N_total") || words == "nanotron" || has("N_held")) return "palm";
  if (hardware) return "sc21";
  if (row.source == "MegaScale" || row.source == "Megatron-LM README") return "dgxc";
  if (row.source == "Llama 3") return "megatron";
  if (row.source == "picotron" || row.source == "PaLM") return "palm";
  return "";
}

namespace {

// The formula of dgxc-benchmarking's READMEs with the numbers they put in: 16 key/value heads for Llama 3.1 405B (as in
// its first config; it has 8), as many as query heads for Nemotron-4 15B (it has 8). Parameters more than the model
// has.
double recipe_extra_parameters(const CheckRow& row) {
  if (row.source != "dgxc-benchmarking") return 0;
  const ModelShape& m = *row.model;
  int64_t counted = m.num_kv_heads;
  if (row.model_name == "llama3-405B") counted = 16;
  if (row.model_name == "nemotron4-15B") counted = m.num_heads;
  return 2.0 * static_cast<double>(m.num_layers * m.hidden * m.v_dim * (counted - m.num_kv_heads));
}

}  // namespace

double convention_flops(const CheckRow& row, const std::string& convention) {
  FlopBasis basis = flop_basis(*row.model);
  double flops =
      train_flops_per_token(basis, static_cast<double>(row.parallel.seq_len), flop_convention(convention)).total();
  return row.flops_scale * (flops + 6 * recipe_extra_parameters(row));
}

std::optional<double> measured_step(const CheckRow& row) {
  if (double seconds = at(row.measured, "step_time_s"); seconds > 0) return seconds;
  if (!row.cluster || !row.model) return std::nullopt;
  double tokens = static_cast<double>(row.parallel.global_batch * row.parallel.seq_len);
  double devices = static_cast<double>(row.cluster->num_devices);
  if (double rate = at(row.measured, "tokens_per_s"); rate > 0) return tokens / rate;
  if (double rate = at(row.measured, "tokens_per_s_per_gpu"); rate > 0) return tokens / (rate * devices);
  auto from_flops = [&](double flops_per_second, bool hardware) -> std::optional<double> {
    std::string convention = convention_of(row, hardware);
    if (convention.empty() || flops_per_second <= 0) return std::nullopt;
    return tokens * convention_flops(row, convention) / (flops_per_second * devices);
  };
  if (double rate = at(row.measured, "hw_tflops_per_gpu"); rate > 0) return from_flops(rate * 1e12, true);
  if (double rate = at(row.measured, "model_tflops_per_gpu"); rate > 0) return from_flops(rate * 1e12, false);
  if (double share = at(row.measured, "mfu_pct"); share > 0) return from_flops(share / 100 * row.peak_flops, false);
  return std::nullopt;
}

spec::ParallelSpec completed_layout(const CheckRow& row, const Efficiency& efficiency) {
  if (row.micro_batch_given && row.interleave_given) return row.parallel;
  const Software& software = find_software(row.software);
  spec::ParallelSpec best = row.parallel;
  double best_seconds = 1e300;
  int64_t given = static_cast<int64_t>(at(row.layout, "vp"));
  for (int64_t micro : {1, 2, 4, 8, 16}) {
    if (row.micro_batch_given && micro != 1) continue;
    for (int64_t interleave : {1, 2, 3, 4, 6, 8}) {
      if (row.interleave_given && interleave != row.parallel.interleave) continue;
      if (given > 0 && interleave != given) continue;
      spec::ParallelSpec p = row.parallel;
      if (!row.micro_batch_given) p.micro_batch = micro;
      p.interleave = p.pp > 1 ? interleave : 1;
      if (p.interleave > 1) p.schedule = spec::PipelineKind::interleaved;
      if (p.global_batch % (p.micro_batch * p.dp()) != 0 || p.pp * p.interleave > row.model->num_layers) continue;
      if (p.interleave > 1 && p.micro_batches() % p.pp != 0) continue;
      if (!plan_memory(*row.model, p, software).fits(row.cluster->device.memory_bytes)) continue;
      StepEstimate plan = plan_step(*row.model, p, *row.cluster, software, efficiency, parse_format(row.format));
      if (plan.seconds < best_seconds) best = p, best_seconds = plan.seconds;
    }
  }
  return best;
}

namespace {

// A row that does not say its layout gets the one the planner would choose.
double searched_step(const CheckRow& row) {
  SearchRequest request;
  request.model = *row.spec;
  request.cluster = *row.cluster;
  request.seq_len = row.parallel.seq_len;
  request.global_batch = row.parallel.global_batch;
  request.software = row.software;
  request.format = parse_format(row.format);
  request.top = 1;
  SearchResult found = search_layouts(request);
  if (found.best.empty()) base::fail("the layout is not given, and none that was tried fits");
  return found.best.front().step.seconds;
}

}  // namespace

double predicted_step(const CheckRow& row, const Efficiency& efficiency) {
  if (!row.layout_given) return searched_step(row);
  spec::ParallelSpec p = completed_layout(row, efficiency);
  return plan_step(*row.model, p, *row.cluster, find_software(row.timed()), efficiency, parse_format(row.format))
      .seconds;
}

}  // namespace sinter::plan
