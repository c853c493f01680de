// The parts of `sinter plan`: one file per subcommand, and the options they share.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "plan/hardware.h"
#include "spec/model_spec.h"

namespace sinter::cli {

class Command;

// --gpus, --nodes, --network, --rails, --read, --write, --price, --mtbf, --hardware
struct ClusterOptions {
  std::string gpus, hardware, network;
  int64_t nodes = 0;
  int rails = 0;
  double read_gb_s = 0, write_gb_s = 0, price = -1, mtbf_hours = 0;
};
// The sequence length to plan with: as asked for, else 4096 or the model's own limit. A usage error where the model has
// learned fewer positions.
int64_t choose_seq_len(int64_t asked, const spec::ModelSpec& model);
void add_cluster_options(Command command, ClusterOptions& options, const std::string& default_gpus);
// Throws UsageError with the nearest valid choice (0 devices, nodes that do not divide them, unknown names).
plan::Cluster make_cluster(const ClusterOptions& options);
plan::HardwareTable make_hardware(const ClusterOptions& options);

// An option's value, by a parser that files are read with too: what it throws becomes an error of the command line.
template <class Parse>
auto parse_option(const char* option, const std::string& text, Parse parse) {
  try {
    return parse(text);
  } catch (const base::Error& e) {
    base::fail_usage("{}: {}", option, e.what());
  }
}

// A --format that training is done in. A usage error for those that only serve inference.
plan::MatrixFormat parse_trained_format(const std::string& text);

// What --format, --software, --grid and --convention take, for their help.
std::string format_help();
std::string software_help();
std::string grid_help();
std::string convention_help();

// One formula with its numbers put in, for --explain.
struct ExplainedLine {
  std::string name, formula, numbers, result;
};
void print_explanation(const std::vector<ExplainedLine>& lines);
// Prints `value` with two spaces, as every --json does.
void print_json(const nlohmann::json& value);
// Where the device has no unit for the format asked for: what products run in, and which format would be faster; else
// "".
std::string format_note(const plan::DeviceSpec& device, plan::MatrixFormat format);
// "$77.0M"
std::string format_money(double dollars);
// A count of steps or hours: three digits of what is below ten or has too many, else all with commas.
std::string format_whole(double number);
std::string format_energy(double kwh);     // "12.3 kWh", "4.56 MWh"
std::string format_carbon(double tonnes);  // "3.2 kg CO2", "12 t CO2"

void add_plan_devices(Command plan);  // devices, models
void add_plan_scaling(Command plan);
void add_plan_fit(Command plan);
void add_plan_batch(Command plan);
void add_plan_cost(Command plan);
void add_plan_inference(Command plan);

}  // namespace sinter::cli
