#include "plan/hardware.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace sinter::plan {
namespace {

HardwareTable built_in() { return load_hardware("/dev/null"); }

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "(no error)";
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(Hardware, TableHasTheDevicesPeopleUse) {
  HardwareTable table = built_in();
  EXPECT_GE(table.devices.size(), 20u);
  for (const char* name : {"V100",     "T4",       "A40",    "A100-40GB", "A100-80GB", "H100",     "H100-PCIe",
                           "H200",     "B200",     "GB200",  "MI250X",    "MI300X",    "L4",       "L40S",
                           "RTX 3090", "rtx-4090", "TPU v4", "TPU v5e",   "tpuv5p",    "EPYC-9654"}) {
    EXPECT_GT(table.device(name).memory_bytes, 0) << name;
  }
  EXPECT_EQ(table.device("H100").peak(MatrixFormat::bf16), 989e12);
  EXPECT_EQ(table.device("a100").bandwidth, 2039e9);
}

TEST(Hardware, NoNameOrAliasMeansTwoDevices) {
  HardwareTable table = built_in();
  for (const DeviceSpec& d : table.devices) {
    EXPECT_EQ(table.device(d.name).name, d.name);
    for (const std::string& alias : d.aliases) EXPECT_EQ(table.device(alias).name, d.name) << alias;
    EXPECT_NO_THROW(table.network(d.network)) << d.name;
  }
}

TEST(Hardware, UnknownDeviceNamesTheNearest) {
  HardwareTable table = built_in();
  expect_contains(error_of([&] { table.device("H10O"); }), "H100-SXM5-80GB");
  expect_contains(error_of([&] { table.device("A100-90GB"); }), "A100");
  expect_contains(error_of([&] { table.device("quantum"); }), "unknown device 'quantum'");
  expect_contains(error_of([&] { parse_format("bf61"); }), "bf16");
  EXPECT_EQ(error_of([&] { table.device("12"); }).find("did you mean"), std::string::npos);
}

TEST(Hardware, AMachineNotMeasuredYetSaysHow) {
  HardwareTable table = built_in();
  expect_contains(error_of([&] { table.device("this-machine"); }), "run `sinter plan --measure`");
  table.devices[0].name = "this-machine";
  EXPECT_NO_THROW(table.device("this machine"));
}

TEST(Hardware, TheVariableMustNameAFile) {
  const char* before = std::getenv("SINTER_HARDWARE");
  const std::string saved = before ? before : "";
  ::setenv("SINTER_HARDWARE", "/no/such/file.toml", 1);
  const std::string error = error_of([] { load_hardware(); });
  EXPECT_NO_THROW(load_hardware("/dev/null"));  // a file told by name needs no variable
  before ? ::setenv("SINTER_HARDWARE", saved.c_str(), 1) : ::unsetenv("SINTER_HARDWARE");
  expect_contains(error, "SINTER_HARDWARE is '/no/such/file.toml'");
}

TEST(Hardware, FormatsWithoutAUnitRunOnTheNextWiderOne) {
  HardwareTable table = built_in();
  EXPECT_EQ(table.device("H100").compute_format(MatrixFormat::int4), MatrixFormat::int8);
  EXPECT_EQ(table.device("A100").compute_format(MatrixFormat::fp8), MatrixFormat::bf16);
  EXPECT_EQ(table.device("V100").compute_format(MatrixFormat::bf16), MatrixFormat::fp32);
  EXPECT_EQ(table.device("B200").compute_rate(MatrixFormat::fp4), 9000e12);
}

TEST(Hardware, ClusterStringsParse) {
  HardwareTable table = built_in();
  Cluster c = parse_cluster(table, "64xA100-80GB");
  EXPECT_EQ(c.num_devices, 64);
  EXPECT_EQ(c.num_nodes(), 8);
  EXPECT_EQ(c.device.name, "A100-SXM4-80GB");
  EXPECT_EQ(c.node_bandwidth(), 200e9);
  c = parse_cluster(table, "4x4xH100");
  EXPECT_EQ(c.num_devices, 16);
  EXPECT_EQ(c.per_node, 4);
  EXPECT_EQ(c.rails, 4);
  EXPECT_EQ(parse_cluster(table, "8 x MI300X").num_devices, 8);
  EXPECT_EQ(parse_cluster(table, "H200").num_devices, 1);
  EXPECT_EQ(parse_cluster(table, "3090").device.name, "RTX-3090");
  EXPECT_EQ(parse_cluster(table, "2*4090").num_devices, 2);
}

TEST(Hardware, NonsenseClustersAreRefusedWithAnExample) {
  HardwareTable table = built_in();
  expect_contains(error_of([&] { parse_cluster(table, "0xH100"); }), "1xH100");
  expect_contains(error_of([&] { parse_cluster(table, "-4xH100"); }), "-4");
  expect_contains(error_of([&] { parse_cluster(table, "64"); }), "64xA100-80GB");
  expect_contains(error_of([&] { parse_cluster(table, "8x"); }), "names no device");
  expect_contains(error_of([&] { parse_cluster(table, ""); }), "names no device");
  expect_contains(error_of([&] { parse_cluster(table, "99999999999999999999xH100"); }), "number");
}

TEST(Hardware, DeviceSurvivesTheRoundTripThroughToml) {
  HardwareTable table = built_in();
  for (const DeviceSpec& d : table.devices) {
    HardwareTable copy;
    copy.add_toml(device_toml(d), "written");
    EXPECT_EQ(device_toml(copy.devices.at(0)), device_toml(d));
    EXPECT_NEAR(copy.devices[0].memory_bytes, d.memory_bytes, 1e-5 * d.memory_bytes);
  }
}

TEST(Hardware, UserFileReplacesAndAdds) {
  HardwareTable table = built_in();
  size_t before = table.devices.size();
  table.add_toml(
      "[[device]]\nname = \"T4\"\nmemory_gib = 3\nbandwidth_gb_s = 5\nfp32 = 1\n"
      "[[device]]\nname = \"mine\"\nmemory_gib = 1\nbandwidth_gb_s = 1\nbf16 = 1\n",
      "user.toml");
  EXPECT_EQ(table.devices.size(), before + 1);
  EXPECT_EQ(table.device("t4").bandwidth, 5e9);
  expect_contains(error_of([&] { table.add_toml("[[device]]\nname = \"x\"\nmemory_gibb = 3\n", "u.toml"); }), "u.toml");
  expect_contains(error_of([&] {
                    table.add_toml("[[device]]\nname=\"x\"\nmemory_gib=3\nbandwidth_gb_s=1\nbf16=1\nlinks=\"a\"\n",
                                   "u");
                  }),
                  "did you mean 'link'");
  expect_contains(error_of([&] { table.add_toml("[[device]\n", "u.toml"); }), "line 1");
}

TEST(Hardware, ClusterFileDescribesNetworkAndStorage) {
  std::string path = ::testing::TempDir() + "sinter_cluster_test.toml";
  std::ofstream(path) << "[cluster]\ndevice = \"A100\"\nnodes = 12\nper_node = 4\nnetwork = \"slow\"\nrails = 2\n"
                         "[storage]\nread_gb_s = 20\nwrite_gb_s = 10\n[[network]]\nname = \"slow\"\ngb_s = 1.25\n";
  Cluster c = parse_cluster(built_in(), path);
  EXPECT_EQ(c.num_devices, 48);
  EXPECT_EQ(c.node_bandwidth(), 2.5e9);
  EXPECT_EQ(c.storage.write_bandwidth, 10e9);
  std::filesystem::remove(path);
}

TEST(EfficiencyCurve, IsLinearInTheLogarithmAndFlatOutside) {
  EfficiencyCurve curve{{{1e9, 0.2}, {1e11, 0.8}}};
  EXPECT_DOUBLE_EQ(curve.at(1), 0.2);
  EXPECT_DOUBLE_EQ(curve.at(1e10), 0.5);
  EXPECT_DOUBLE_EQ(curve.at(1e15), 0.8);
  EXPECT_DOUBLE_EQ(EfficiencyCurve{}.at(5, 0.7), 0.7);
}

}  // namespace
}  // namespace sinter::plan
