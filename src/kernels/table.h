// The kernel table: one function pointer per kernel, one table per backend (cpu/, cuda/, reference/, shapes/).
//
// Rules for every kernel:
//   - Letters as in core/dims.md. An empty Tensor means "not given". Tensors are row-major and on the stream's device.
//   - `compute format` is f32, bf16 or f16: one format for x, y, weights of one call unless said. Sums are f32.
//   - Outputs are overwritten unless the comment says ADDS. Nothing is allocated except scratch a backend keeps itself.
//   - CPU results do not depend on the number of threads, and a row's result does not depend on the other rows of the
//     call: matrix products sum over K in an order fixed by K alone, attention walks keys in tiles counted from each
//     sequence's start. That is what makes the CPU batch-invariant.
//   - CUDA kernels enqueue on the stream, never wait for it, never read device values on the host.
#pragma once
#include <string>
#include <vector>

#include "kernels/args/activation.h"
#include "kernels/args/adapter.h"
#include "kernels/args/attention.h"
#include "kernels/args/embedding.h"
#include "kernels/args/fp8.h"
#include "kernels/args/loss.h"
#include "kernels/args/matmul.h"
#include "kernels/args/memory.h"
#include "kernels/args/moe.h"
#include "kernels/args/norm.h"
#include "kernels/args/optimizer.h"
#include "kernels/args/rope.h"
#include "kernels/args/sampling.h"
#include "kernels/kernel_list.h"

namespace sinter::kernels {

struct KernelTable {
  const char* name = "";
  // Kernels that write weight gradients can sum their squares in passing: whoever needs the norm of them need not read
  // them again.
  bool writes_square_sums = false;
#define SINTER_ENTRY(name, Args, cpu, cuda) void (*name)(Stream&, const Args&) = nullptr;
  SINTER_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
#define SINTER_ENTRY(name, Args, cpu, cuda) bool (*name)(Stream&, const Args&) = nullptr;  // null: never taken
  SINTER_FUSED_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
};

// What a column of the list that reads `absent` stands for.
namespace absent {
#define SINTER_ENTRY(name, Args, cpu, cuda) inline constexpr decltype(nullptr) name = nullptr;
SINTER_KERNELS(SINTER_ENTRY)
SINTER_FUSED_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
}  // namespace absent

// Calls visit.operator()<&KernelTable::entry>("entry") for every kernel of the list, and for the fused ones.
template <class Visitor>
constexpr void visit_kernels(Visitor&& visit) {
#define SINTER_VISIT(name, Args, cpu, cuda) visit.template operator()<&KernelTable::name>(#name);
  SINTER_KERNELS(SINTER_VISIT)
#undef SINTER_VISIT
}
template <class Visitor>
constexpr void visit_fused_kernels(Visitor&& visit) {
#define SINTER_VISIT(name, Args, cpu, cuda) visit.template operator()<&KernelTable::name>(#name);
  SINTER_FUSED_KERNELS(SINTER_VISIT)
#undef SINTER_VISIT
}

// A table in which a kernel that the backend lacks is an error that names it, not a null call.
KernelTable complete_table(KernelTable table);

// What each backend has, for people: "own", "reference" (the plain loops serve) or "-".
struct KernelRow {
  std::string name;
  bool is_fused = false;
  std::string reference, cpu, cuda;
};
std::vector<KernelRow> kernel_matrix();

// The tables. cuda_table() is null when the backend is not built (kernels/cuda_absent.cc).
const KernelTable* cpu_table();
const KernelTable* cuda_table();
const KernelTable* shapes_table();
// Plain loops with f64 sums where it matters; on the CPU device. What every fast kernel is tested against.
const KernelTable* reference_table();

// The table of a device. Throws base::Error when there is none. SINTER_KERNELS=reference puts the plain loops in the
// CPU's place.
const KernelTable& kernels_for(core::Device device);

}  // namespace sinter::kernels
