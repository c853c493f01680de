// Of test_kernels and of test_cuda: gtest over the cases and over the programs' own tests.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "kernels/cases/case.h"
#include "kernels/cases/options.h"

int main(int argc, char** argv) {
  using namespace sinter::kernels::cases;
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--small") {
      options().small = true;
    } else if (arg == "--print") {
      options().prints = true;
    } else {
      std::fprintf(stderr, "usage: %s [--small] [--print] [--gtest_filter=PATTERN ...]; found '%s'\n", argv[0],
                   argv[i]);
      return 2;
    }
  }
  for (auto register_cases :
       {register_elementwise_cases, register_embedding_cases, register_memory_cases, register_norm_cases,
        register_loss_cases, register_optimizer_cases, register_moe_cases, register_matmul_cases,
        register_fused_matmul_cases, register_fp8_cases, register_attention_cases, register_decoding_cases,
        register_parts_cases, register_quantized_cases}) {
    register_cases();
  }
  if (target().register_own_cases) target().register_own_cases();
  if (!target().is_present && !GTEST_FLAG_GET(list_tests)) {
    std::printf("no GPU: nothing was tested\n");
    return 0;
  }
  const int status = RUN_ALL_TESTS();
  if (GTEST_FLAG_GET(list_tests)) return status;
  std::string levels;
  for (const std::string& level : target().levels) levels += (levels.empty() ? "" : ", ") + level;
  std::printf("%lld comparisons with the reference%s\n", static_cast<long long>(options().num_compared),
              levels.empty() ? "" : (" on " + levels).c_str());
  return status;
}
