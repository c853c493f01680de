#include "kernels/cases/tensors.h"

namespace sinter::kernels {
namespace {

using namespace testing;  // NOLINT

TEST(CpuNorm, ARowDoesNotDependOnTheOthers) {
  for (const Format& format : kFormats) {
    Tensor x = random_tensor({37, 130}, format.dtype, 1), weight = random_tensor({130}, DType::f32, 2);
    auto run = [&](const Tensor& rows) {
      NormForwardArgs args{.x = rows,
                           .weight = weight,
                           .y = empty_tensor(rows.shape(), format.dtype),
                           .rstd = empty_tensor({rows.size(0)}, DType::f32)};
      cpu_table()->norm_forward(stream(), args);
      return args.y;
    };
    EXPECT_TRUE(bit_equal(run(x).slice(11, 5), run(x.slice(11, 5))));
  }
}

}  // namespace
}  // namespace sinter::kernels
