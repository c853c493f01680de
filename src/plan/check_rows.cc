#include "plan/check_rows.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "plan/check_points.h"

namespace sinter::plan {
namespace {

std::vector<std::string> split(const std::string& line, char separator) {
  std::vector<std::string> cells;
  size_t begin = 0;
  while (true) {
    size_t end = line.find(separator, begin);
    cells.push_back(line.substr(begin, end == std::string::npos ? end : end - begin));
    if (end == std::string::npos) break;
    begin = end + 1;
  }
  return cells;
}

// A CSV without quoting: the sweeps need none.
class Csv {
 public:
  Csv(const std::string& text, std::string path) : path_(std::move(path)) {
    size_t begin = 0;
    while (begin < text.size()) {
      size_t end = std::min(text.find('\n', begin), text.size());
      std::string line = text.substr(begin, end - begin);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (!line.empty()) lines_.push_back(split(line, ','));
      begin = end + 1;
    }
    SINTER_CHECK(!lines_.empty(), "{}: the file is empty; expected a header line", path_);
    for (size_t i = 1; i < lines_.size(); ++i) {
      SINTER_CHECK(lines_[i].size() == lines_[0].size(), "{}:{}: {} cells; the header has {}", path_, i + 1,
                   lines_[i].size(), lines_[0].size());
    }
  }
  size_t num_rows() const { return lines_.size() - 1; }
  bool has(const std::string& name) const {
    return std::find(lines_[0].begin(), lines_[0].end(), name) != lines_[0].end();
  }
  const std::string& text(size_t row, const std::string& name) const {
    auto found = std::find(lines_[0].begin(), lines_[0].end(), name);
    SINTER_CHECK(found != lines_[0].end(), "{}: no column '{}'", path_, name);
    return lines_[row + 1][static_cast<size_t>(found - lines_[0].begin())];
  }
  double number(size_t row, const std::string& name) const {
    const std::string& cell = text(row, name);
    char* end = nullptr;
    double value = std::strtod(cell.c_str(), &end);
    SINTER_CHECK(end != cell.c_str() && *end == '\0', "{}:{}: '{}' in column {} is not a number", path_, row + 2, cell,
                 name);
    return value;
  }
  int64_t whole(size_t row, const std::string& name) const { return static_cast<int64_t>(number(row, name)); }

 private:
  std::string path_;
  std::vector<std::vector<std::string>> lines_;
};

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

CheckRow vtrain_row(const Csv& csv, size_t i, const std::string& path, const HardwareTable& hardware) {
  CheckRow row;
  row.id = fmt::format("{}:{}", path, i + 2);
  row.source = csv.text(i, "set") == "single" ? "vTrain single node" : "vTrain multi node";
  row.kind = "train";
  row.software = "megatron-deepspeed";
  spec::ModelSpec model =
      gpt_spec(csv.whole(i, "layers"), csv.whole(i, "hidden"), csv.whole(i, "heads"), 51200, csv.whole(i, "seq_len"));
  row.model = make_model_shape(model);
  row.model_name = fmt::format("gpt L{} h{}", model.num_layers, model.hidden);
  spec::ParallelSpec& p = row.parallel;
  p.tp = csv.whole(i, "tp");
  p.replica = csv.whole(i, "dp");
  p.pp = csv.whole(i, "pp");
  p.micro_batch = csv.whole(i, "micro");
  p.global_batch = csv.whole(i, "global_batch");
  p.seq_len = csv.whole(i, "seq_len");
  p.recompute = spec::Recompute::full;
  p.main_gradients = base::DType::f16;
  p.compute = base::DType::f16;
  row.format = "fp16";
  row.cluster = make_cluster(hardware, "A100-SXM4-80GB", csv.whole(i, "gpus"), 100);
  row.measured["step_time_s"] = csv.number(i, "iter_ms") / 1e3;
  row.group = sweep_group(row);
  return row;
}

CheckRow nanotron_row(const Csv& csv, size_t i, const std::string& path, const HardwareTable& hardware) {
  CheckRow row;
  row.id = fmt::format("{}:{}", path, i + 2);
  row.source = "nanotron sweep";
  row.kind = "train";
  row.software = "nanotron";
  row.model_name = csv.text(i, "model");
  std::optional<spec::ModelSpec> model = known_model(row.model_name);
  if (!model) {
    row.problem = "model " + row.model_name + " is not known";
    return row;
  }
  row.model = make_model_shape(*model);
  spec::ParallelSpec& p = row.parallel;
  p.tp = csv.whole(i, "tp");
  p.pp = csv.whole(i, "pp");
  p.zero = static_cast<int>(csv.whole(i, "zero"));
  (p.zero > 0 ? p.shard : p.replica) = csv.whole(i, "dp");
  p.sequence_parallel = p.tp > 1;
  p.micro_batch = csv.whole(i, "micro");
  p.seq_len = csv.whole(i, "seq_len");
  p.global_batch = p.micro_batch * csv.whole(i, "grad_accum") * p.dp();
  row.cluster = make_cluster(hardware, "H100-SXM5-80GB", csv.whole(i, "gpus"), 400);
  row.peak_flops = 989e12;
  row.convention = "nanotron";
  row.failed = csv.text(i, "status") != "ok";
  row.group = sweep_group(row);
  if (row.failed) return row;  // some left figures behind; they are not of a run that finished
  if (!csv.text(i, "tok_s_gpu").empty()) row.measured["tokens_per_s_per_gpu"] = csv.number(i, "tok_s_gpu");
  if (!csv.text(i, "mem_gb").empty()) row.measured["memory_gib"] = csv.number(i, "mem_gb");
  if (!csv.text(i, "mfu_pct_published").empty()) row.measured["mfu_pct"] = csv.number(i, "mfu_pct_published");
  return row;
}

}  // namespace

std::vector<CheckRow> load_check_rows(const std::string& path, const HardwareTable& hardware) {
  std::string text = base::read_file(path);
  size_t first = text.find_first_not_of(" \t\r\n");
  SINTER_CHECK(first != std::string::npos, "{}: the file is empty", path);
  if (text[first] == '{' || text[first] == '[') return load_points(text, path, hardware);
  Csv csv(text, path);
  std::string name = path.substr(path.find_last_of('/') + 1);
  std::vector<CheckRow> rows;
  for (size_t i = 0; i < csv.num_rows(); ++i) {
    if (csv.has("iter_ms")) {
      rows.push_back(vtrain_row(csv, i, name, hardware));
    } else if (csv.has("tok_s_gpu")) {
      rows.push_back(nanotron_row(csv, i, name, hardware));
    } else {
      base::fail("{}: neither points in JSON nor a sweep with a column 'iter_ms' (vTrain) or 'tok_s_gpu' (nanotron)",
                 path);
    }
  }
  return rows;
}

}  // namespace sinter::plan
