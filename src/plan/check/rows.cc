#include "plan/check/rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "plan/check/points.h"
#include "plan/csv.h"

namespace sinter::plan {
namespace {

// A count of ranks, layers, sequences or tokens.
int64_t whole(const CsvTable& csv, size_t row, const std::string& column) {
  const double value = csv.number(row, column);
  SINTER_CHECK(value >= 1 && value <= 1e6 && value == std::floor(value),
               "{} is {}; expected a whole number from 1 to a million", column, csv.text(row, column));
  return static_cast<int64_t>(value);
}

// A measured quantity; 0 where the cell is empty or the table has no such column.
double measured(const CsvTable& csv, size_t row, const std::string& column) {
  if (csv.text(row, column).empty()) return 0;
  const double value = csv.number(row, column);
  SINTER_CHECK(value > 0, "{} is {}; expected more than 0", column, csv.text(row, column));
  return value;
}

// What no run can be, whatever its program.
void check_division(const spec::ParallelSpec& p, const ModelShape& model, int64_t devices) {
  SINTER_CHECK(p.ranks() == devices, "dp {} x tp {} x pp {} is not the {} devices", p.dp(), p.tp, p.pp, devices);
  SINTER_CHECK(model.num_heads % p.tp == 0, "tp {} does not divide {} heads", p.tp, model.num_heads);
  SINTER_CHECK(p.global_batch % (p.micro_batch * p.dp()) == 0, "micro-batch {} x dp {} does not divide the batch of {}",
               p.micro_batch, p.dp(), p.global_batch);
}

Cluster make_cluster(const HardwareTable& hardware, const char* device, int64_t gpus, double node_gbytes) {
  Cluster cluster;
  cluster.device = hardware.device(device);
  cluster.num_devices = gpus;
  cluster.per_node = 8;
  cluster.rails = 8;
  cluster.network.name = "as published";
  cluster.network.bandwidth = node_gbytes * 1e9 / cluster.rails;
  return cluster;
}

void read_vtrain(const CsvTable& csv, size_t i, const HardwareTable& hardware, CheckRow& row) {
  const int64_t devices = whole(csv, i, "gpus");
  row.source = devices <= 8 ? "vTrain single node" : "vTrain multi node";
  row.software = "megatron-deepspeed";
  spec::ModelSpec model = gpt_spec(whole(csv, i, "layers"), whole(csv, i, "hidden"), whole(csv, i, "heads"), 51200,
                                   whole(csv, i, "seq_len"));
  spec::check_model_spec(model);
  row.model = make_model_shape(model);
  row.model_name = fmt::format("gpt L{} h{}", model.num_layers, model.hidden);
  spec::ParallelSpec& p = row.parallel;
  p.tp = whole(csv, i, "tp");
  p.replica = whole(csv, i, "dp");
  p.pp = whole(csv, i, "pp");
  p.micro_batch = whole(csv, i, "micro");
  p.global_batch = whole(csv, i, "global_batch");
  p.seq_len = whole(csv, i, "seq_len");
  p.recompute = spec::Recompute::full;
  p.main_gradients = base::DType::f16;
  p.compute = base::DType::f16;
  row.format = "fp16";
  row.cluster = make_cluster(hardware, "A100-SXM4-80GB", devices, 100);
  check_division(p, *row.model, devices);
  SINTER_CHECK(p.pp <= model.num_layers, "pp {} is more than the {} layers", p.pp, model.num_layers);
  row.measured["step_time_s"] = measured(csv, i, "iter_ms") / 1e3;
  row.group = sweep_group(row);
}

void read_nanotron(const CsvTable& csv, size_t i, const HardwareTable& hardware, CheckRow& row) {
  row.software = "nanotron";
  row.model_name = csv.text(i, "model");
  std::optional<spec::ModelSpec> model = known_model(row.model_name);
  SINTER_CHECK(model.has_value(), "model '{}' is not known", row.model_name);
  row.model = make_model_shape(*model);
  spec::ParallelSpec& p = row.parallel;
  p.tp = whole(csv, i, "tp");
  p.pp = whole(csv, i, "pp");
  const double zero = csv.has("zero") ? csv.number(i, "zero") : 0;
  SINTER_CHECK(zero == 0 || zero == 1 || zero == 2 || zero == 3, "zero is {}; expected 0 to 3", csv.text(i, "zero"));
  p.zero = static_cast<int>(zero);
  (p.zero > 0 ? p.shard : p.replica) = whole(csv, i, "dp");
  p.sequence_parallel = p.tp > 1;
  p.micro_batch = whole(csv, i, "micro");
  p.seq_len = whole(csv, i, "seq_len");
  p.global_batch = p.micro_batch * whole(csv, i, "grad_accum") * p.dp();
  row.cluster = make_cluster(hardware, "H100-SXM5-80GB", whole(csv, i, "gpus"), 400);
  row.peak_flops = 989e12;
  row.convention = "nanotron";
  check_division(p, *row.model, row.cluster->num_devices);
  row.failed = csv.has("status") && csv.text(i, "status") != "ok";
  row.group = sweep_group(row);
  if (row.failed) return;  // some left figures behind; they are not of a run that finished
  for (auto [name, column] :
       {std::pair{"tokens_per_s_per_gpu", "tok_s_gpu"}, {"memory_gib", "mem_gb"}, {"mfu_pct", "mfu_pct_published"}}) {
    if (double value = measured(csv, i, column); value > 0) row.measured[name] = value;
  }
  infer_gathering(row);
}

}  // namespace

std::vector<CheckRow> load_check_rows(const std::string& path, const HardwareTable& hardware) {
  std::string text = base::read_file(path);
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);
  size_t first = text.find_first_not_of(" \t\r\n");
  SINTER_CHECK(first != std::string::npos, "{}: the file is empty", path);
  if (text[first] == '{' || text[first] == '[') return load_points(text, path, hardware);
  const CsvTable csv(text, path.substr(path.find_last_of('/') + 1));
  const bool is_vtrain = csv.has("iter_ms");
  SINTER_CHECK(is_vtrain || csv.has("tok_s_gpu"),
               "{}: neither points in JSON nor a sweep with a column 'iter_ms' (vTrain) or 'tok_s_gpu' (nanotron)",
               path);
  static const std::vector<std::string> kVtrain{"gpus",   "global_batch", "micro", "hidden", "heads",
                                                "layers", "seq_len",      "tp",    "dp",     "pp"};
  static const std::vector<std::string> kNanotron{"model", "gpus", "dp", "tp", "pp", "micro", "grad_accum", "seq_len"};
  for (const std::string& column : is_vtrain ? kVtrain : kNanotron) {
    SINTER_CHECK(csv.has(column), "{}: no column '{}'{}", path, column, base::did_you_mean(column, csv.header()));
  }
  std::vector<CheckRow> rows(csv.num_rows());
  for (size_t i = 0; i < rows.size(); ++i) {
    CheckRow& row = rows[i];
    row.id = csv.place(i);
    row.kind = "train";
    row.source = is_vtrain ? "vTrain" : "nanotron sweep";
    try {
      (is_vtrain ? read_vtrain : read_nanotron)(csv, i, hardware, row);
    } catch (const base::Error& e) {
      row.problem = e.what();
      row.group.clear();
    }
  }
  return rows;
}

}  // namespace sinter::plan
