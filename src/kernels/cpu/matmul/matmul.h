// The CPU's matrix product: one blocked driver over packed panels, a microkernel per instruction set.
//
// A row of c has the same bits whatever the other rows of the call, the number of threads, and whether the weight was
// packed ahead (WeightView::derived) or on the way: the sum over K is one chain in f32, kept in f32 between blocks of
// K. On AMX f32 goes as sums of three bf16, which is as exact: by 32 elements of K at a time (matmul_f32_amx.cc).
#pragma once
#include "kernels/cpu/matmul/matmul_kernel.h"
#include "kernels/table.h"

namespace sinter::kernels::cpu {

// f32 -> f32; bf16 -> bf16 or f32; f16 -> f16 or f32. Throws base::Error when shapes or formats do not fit.
void matmul(Stream&, const MatmulArgs&);

enum class MatmulIsa { portable, avx2, avx512, avx512_bf16, amx };
inline constexpr MatmulIsa kMatmulIsas[] = {MatmulIsa::portable, MatmulIsa::avx2, MatmulIsa::avx512,
                                            MatmulIsa::avx512_bf16, MatmulIsa::amx};
const char* matmul_isa_name(MatmulIsa isa);
// Whether this CPU (lowered by SINTER_ISA) runs it.
bool can_run(MatmulIsa isa);
// The best that can run, unless set_matmul_isa() lowered it: for tests and benchmarks, while no product runs.
MatmulIsa matmul_isa();
void set_matmul_isa(MatmulIsa isa);

// The microkernel that products of this format use. f16, and bf16 below avx512_bf16, are widened to f32 when packed.
const MatmulKernel& matmul_kernel(base::DType dtype);

}  // namespace sinter::kernels::cpu
