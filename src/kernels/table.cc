#include "kernels/table.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "kernels/choices.h"
#include "kernels/trace.h"

namespace sinter::kernels {
namespace {

template <class... Args>
void do_nothing(Args...) {}

template <class... Args>
void set_to_nothing(void (*&kernel)(Args...)) {
  kernel = &do_nothing<Args...>;
}

template <class... Kernels>
void set_all_to_nothing(Kernels&... kernels) {
  (set_to_nothing(kernels), ...);
}

KernelTable make_shapes_table() {
  KernelTable t{};
  t.name = "shapes";
  set_all_to_nothing(t.fill, t.axpby, t.matmul, t.column_sum, t.embedding_forward, t.embedding_backward, t.norm_forward,
                     t.norm_backward, t.head_norm_forward, t.head_norm_backward, t.rope_table, t.rope, t.kv_write,
                     t.attention_forward, t.attention_backward, t.activation_forward, t.activation_backward, t.dropout,
                     t.cross_entropy, t.router_forward, t.router_backward, t.balance_loss, t.expert_sort,
                     t.expert_gather, t.expert_combine, t.expert_combine_backward, t.adamw, t.sgd, t.muon_momentum,
                     t.normalize, t.sum, t.sum_squares, t.fp8_quantize, t.fp8_swiglu_forward, t.fp8_swiglu_backward,
                     t.fp8_rescale, t.step_control);
  return t;
}

bool wants_reference() {
  const char* text = std::getenv("SINTER_KERNELS");
  if (!text || !*text) return false;
  SINTER_CHECK(std::string_view(text) == "reference", "SINTER_KERNELS is '{}'; expected 'reference' or nothing", text);
  return true;
}

}  // namespace

const KernelTable* shapes_table() {
  static const KernelTable table = make_shapes_table();
  return &table;
}

MatmulArgs matmul_of_batch(const MatmulArgs& args, int64_t i) {
  auto part = [&](const Tensor& t) {
    if (!t) return t;
    const int64_t rows = t.rows() / args.batch, columns = t.size(-1);
    return t.reshape({args.batch * rows, columns}).slice(i * rows, rows);
  };
  MatmulArgs one = args;
  one.batch = 1;
  one.a = part(args.a);
  one.b = {.data = part(args.b.data)};
  one.c = part(args.c);
  one.addend = part(args.addend);
  return one;
}

std::vector<std::string> kernel_choices(core::Device device) {
  return device.kind == core::DeviceKind::cuda ? cuda_kernel_choices(device) : std::vector<std::string>();
}

void restore_kernel_choices(core::Device device, const std::vector<std::string>& lines) {
  if (device.kind == core::DeviceKind::cuda && !lines.empty()) restore_cuda_kernel_choices(device, lines);
}

WithoutMeasuring::WithoutMeasuring() { count_cuda_without_measuring(1); }
WithoutMeasuring::~WithoutMeasuring() { count_cuda_without_measuring(-1); }

void set_deterministic(core::Device device) {
  if (device.kind == core::DeviceKind::cuda) set_cuda_deterministic();
}

bool is_tracing(core::Device device) { return device.kind == core::DeviceKind::cuda && is_tracing_cuda(); }

const KernelTable& kernels_for(core::Device device) {
  switch (device.kind) {
    case core::DeviceKind::shapes:
      return *shapes_table();
    case core::DeviceKind::cpu: {
      static const KernelTable* table = wants_reference() ? reference_table() : cpu_table();
      return *table;
    }
    case core::DeviceKind::cuda:
      break;
  }
  SINTER_CHECK(cuda_table(), "there are no CUDA kernels in this sinter; build with `make cuda`");
  return *cuda_table();
}

}  // namespace sinter::kernels
