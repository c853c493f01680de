#include "bench/gpu_kernels.h"

#include <gtest/gtest.h>

namespace sinter::bench {
namespace {

constexpr DeviceCeilings kCeilings{.matmul_flops = 800e12, .matmul_f32_flops = 50e12, .copy_bytes = 4e12};

const Cell& cell(const Report& report, size_t row, const std::string& key) {
  for (size_t i = 0; i < report.columns.size(); ++i) {
    if (report.columns[i].key == key) return report.rows.at(row).at(i);
  }
  throw std::out_of_range(key);
}
double number(const Report& report, size_t row, const std::string& key) {
  return std::get<double>(cell(report, row, key));
}
bool is_empty(const Report& report, size_t row, const std::string& key) {
  return std::holds_alternative<std::monostate>(cell(report, row, key));
}

TEST(GpuKernelsTest, AShareIsOfTheCeilingThatBindsTheKernel) {
  Report report = make_kernel_report();
  add_kernel_rows(report,
                  {{"m", "product", "", 1e-3, 400e9, 1e9, 12},
                   {"m", "norm", "", 1e-3, 0, 3e9, 25},
                   {"m", "failed", "", 0, 400e9, 0, 12}},
                  kCeilings);
  EXPECT_DOUBLE_EQ(number(report, 0, "tflops"), 400);
  EXPECT_DOUBLE_EQ(number(report, 0, "share"), 50);
  EXPECT_EQ(std::get<std::string>(cell(report, 0, "limit")), "bf16 product");
  EXPECT_DOUBLE_EQ(number(report, 0, "pass_ms"), 12);
  EXPECT_TRUE(is_empty(report, 0, "tbps"));
  EXPECT_DOUBLE_EQ(number(report, 1, "tbps"), 3);
  EXPECT_DOUBLE_EQ(number(report, 1, "share"), 75);
  EXPECT_EQ(std::get<std::string>(cell(report, 1, "limit")), "copy");
  EXPECT_TRUE(is_empty(report, 1, "tflops"));
  for (const char* key : {"ms", "tflops", "tbps", "share", "limit"}) EXPECT_TRUE(is_empty(report, 2, key)) << key;
}

TEST(GpuKernelsTest, APassIsTheSumOfItsKernelsUnlessOneFailed) {
  const TrainingShape shape{"m", 2, 500, 12, 64, 1, 1, 256, 512, false};
  std::vector<KernelTime> times{{"m", "product", "", 2e-3, 400e9, 1e9, 40},
                                {"m", "norm", "", 1e-3, 0, 3e9, 20},
                                {"m", "adamw", "", 1, 0, 3e9, 0}};
  Report report = make_kernel_report();
  add_pass_rows(report, times, shape);
  ASSERT_EQ(report.rows.size(), 2u);
  EXPECT_DOUBLE_EQ(number(report, 0, "pass_ms"), 100);
  EXPECT_DOUBLE_EQ(number(report, 0, "tokens_per_s"), 10000);
  EXPECT_DOUBLE_EQ(number(report, 1, "pass_ms"), 80);
  EXPECT_DOUBLE_EQ(number(report, 1, "share"), 80);
  times[1].seconds = 0;
  add_pass_rows(report, times, shape);
  EXPECT_EQ(report.rows.size(), 2u);
}

TEST(GpuKernelsTest, OnlyPicksByAPartOfTheModelOrTheKernel) {
  const TrainingShape shape{"Tiny 1M", 1, 8, 1, 64, 1, 1, 64, 64, false};
  auto kernels_of = [&](const std::string& only) {
    std::vector<std::string> names;
    for (const KernelTime& t : measure_kernels({}, shape, only)) names.push_back(t.kernel);
    return names;
  };
  EXPECT_EQ(kernels_of("norm"), (std::vector<std::string>{"residual + norm forward", "residual + norm backward"}));
  EXPECT_EQ(kernels_of("Tiny 1M sum of"), std::vector<std::string>{"sum of squares"});
  EXPECT_TRUE(kernels_of("nothing-like-this").empty());
}

}  // namespace
}  // namespace sinter::bench
