// The planner's machines: devices, networks and clusters made of them. The table data/hardware.toml is part of the
// program; a user's file of the same form adds to it or replaces entries by name.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sinter::plan {

// Number formats a matrix unit may have. Order: index into Device::flops.
enum class MatrixFormat { fp64, fp32, tf32, fp16, bf16, fp8, fp6, fp4, int8, int4 };
inline constexpr int kNumFormats = 10;
inline constexpr std::array<std::string_view, kNumFormats> kFormatNames{"fp64", "fp32", "tf32", "fp16", "bf16",
                                                                        "fp8",  "fp6",  "fp4",  "int8", "int4"};
std::string_view format_name(MatrixFormat format);
// "bf16", "bfloat16", "float16", "half", ... Throws UsageError naming the nearest.
MatrixFormat parse_format(std::string_view text);
// Bytes of one stored element (int4: 0.5; scales of quantized groups are not in it).
double format_bytes_per_element(MatrixFormat format);

// Share of a peak reached against the size of the work; linear between points over log(size), flat outside.
struct EfficiencyCurve {
  std::vector<std::pair<double, double>> points;  // (size, share), ascending size
  bool empty() const { return points.empty(); }
  double at(double size, double otherwise = 1.0) const;
};

// What a training step of ours reached on the machine itself, by `plan --measure`; gemm 0 = not measured. Shares of the
// memory bandwidth are above 1 where caches serve, and 0 where bytes cost nothing beside the other terms.
struct TrainingShares {
  double gemm = 0;              // share of the format's peak in large products
  double attention = 0;         // the same in fused attention
  double memory = 0;            // share of the bandwidth in element-wise work
  double gemm_start = 0;        // seconds a product takes beside FLOPs and bytes
  double kernel = 0;            // seconds any other kernel takes beside its bytes
  double gemm_memory = 0;       // share of the bandwidth at which a product's rows pass, beside its FLOPs
  double attention_memory = 0;  // the same for queries, keys, values and outputs
  double loss = 0;              // share of the bandwidth in the loss over the vocabulary
  double optimizer = 0;         // share of the bandwidth in the update
  double gemm_weights = 0;      // as gemm_memory, for the matrix itself: it is packed, or summed into
};

// What `sinter train` runs a device with; none: it does not run there.
enum class TrainBackend : uint8_t { none, cpu, cuda };

struct DeviceSpec {
  std::string name;
  std::vector<std::string> aliases;
  std::string vendor;
  double memory_bytes = 0;
  double bandwidth = 0;                          // bytes/s of device memory
  std::array<double, kNumFormats> flops{};       // dense peak per format, FLOP/s; 0 = no unit for it
  std::array<double, kNumFormats> attainable{};  // best measured for a large product; 0 = not known
  std::string link;                              // scale-up link: "NVLink4", "PCIe4", ...
  double link_bandwidth = 0;                     // bytes/s per device, one direction, all links together
  double pair_bandwidth = 0;  // between one pair of devices where links are not switched; 0 = link_bandwidth
  double link_latency = 0;    // seconds of one step of a ring, by `sinter bench comm --save`; 0 = not measured
  double pcie_bandwidth = 0;  // to the host, one direction
  int per_node = 8;           // devices that share the scale-up link
  std::string network;        // usual adapter between nodes
  int rails = 1;              // adapters per node
  double power_watts = 0;
  double price_per_hour = 0;                           // USD, an assumption
  EfficiencyCurve gemm;                                // size = FLOPs of one product
  EfficiencyCurve memory;                              // size = bytes moved
  double measured_read_bandwidth = 0;                  // bytes/s, by `plan --measure`; 0 = not measured
  std::array<TrainingShares, kNumFormats> training{};  // by `plan --measure`

  double peak(MatrixFormat format) const { return flops[static_cast<size_t>(format)]; }
  // The rate products with operands in `format` run at: its own, or that of the narrowest wider format with a unit
  // (int4 weights on a device without int4 units are widened first). Throws Error when there is none.
  double compute_rate(MatrixFormat format) const;
  MatrixFormat compute_format(MatrixFormat format) const;
  TrainBackend backend() const;  // by the vendor; a device of a file that names none is taken for a GPU of NVIDIA
  // Whether parallel layouts on it are those of the trainer's GPU ranks.
  bool is_gpu() const { return backend() != TrainBackend::cpu; }
  bool has_fast_link() const;  // switched or direct links faster than PCIe
  double pair_link() const { return pair_bandwidth > 0 ? pair_bandwidth : link_bandwidth; }
};

struct Network {
  std::string name;
  std::vector<std::string> aliases;
  std::string kind;
  double bandwidth = 0;     // bytes/s per adapter, one direction
  double latency = 5e-6;    // seconds per message
  double efficiency = 0.9;  // share of the line rate a large message reaches
};

// Shared storage as the whole cluster sees it; 0 = unknown.
struct StorageSystem {
  double read_bandwidth = 0, write_bandwidth = 0;  // bytes/s, all nodes together
};

struct Cluster {
  DeviceSpec device;
  Network network;
  int64_t num_devices = 1;
  int per_node = 8;
  int rails = 8;
  StorageSystem storage;
  double price_per_hour = 0;  // per device
  double mtbf_hours = 0;      // mean time between failures of one device; 0 = unknown

  int64_t num_nodes() const { return (num_devices + per_node - 1) / per_node; }
  double node_bandwidth() const { return network.bandwidth * rails; }              // bytes/s out of a node
  double device_network_bandwidth() const { return node_bandwidth() / per_node; }  // a device's fair share
};

class HardwareTable {
 public:
  std::vector<DeviceSpec> devices;
  std::vector<Network> networks;

  // By name or alias, case, spaces and dashes ignored. Throws UsageError that names the nearest device.
  const DeviceSpec& device(std::string_view name) const;
  const Network& network(std::string_view name) const;
  // Adds the entries of a TOML text; those with a known name replace it. `origin` is for error messages.
  void add_toml(std::string_view text, const std::string& origin);
};

// The built-in table plus the user's file: `path`, else $SINTER_HARDWARE, else ~/.config/sinter/hardware.toml if there.
// Throws UsageError when the variable names no file.
HardwareTable load_hardware(const std::string& path = "");
// Where `plan --measure` saves and load_hardware looks.
std::string user_hardware_path();
// The name `plan --measure` saves this machine under unless told another.
inline constexpr std::string_view kMeasuredName = "this-machine";
// One [[device]] as TOML text that add_toml reads back.
std::string device_toml(const DeviceSpec& device);

// "64xA100-80GB", "8*H100", "4x8xH100" (nodes x devices x name), "H100", or the path of a cluster file (*.toml).
// Throws UsageError with a valid example on anything else, 0 devices or an unknown name.
Cluster parse_cluster(const HardwareTable& table, const std::string& text);
// [cluster] device, nodes, per_node, network, rails, price_per_hour, mtbf_hours; [storage] read_gb_s, write_gb_s;
// [[device]] and [[network]] of its own.
Cluster load_cluster(HardwareTable table, const std::string& path);

}  // namespace sinter::plan
