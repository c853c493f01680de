#include "kernels/table.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "kernels/choices.h"
#include "kernels/trace.h"

namespace sinter::kernels {
namespace {

template <class Args>
void do_nothing(Stream&, const Args&) {}

KernelTable make_shapes_table() {
  KernelTable t;
  t.name = "shapes";
#define SINTER_ENTRY(name, Args, cpu, cuda) t.name = do_nothing<Args>;
  SINTER_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
  return t;
}

#define SINTER_ENTRY(name, Args, cpu, cuda)                                                                    \
  void missing_##name(Stream& stream, const Args&) {                                                           \
    base::fail("the kernel '{}' is missing on {}; `sinter bench --kernels` shows what each device has", #name, \
               stream.device.to_string());                                                                     \
  }
SINTER_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY

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

KernelTable complete_table(KernelTable table) {
#define SINTER_ENTRY(name, Args, cpu, cuda) \
  if (!table.name) table.name = missing_##name;
  SINTER_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
  return table;
}

std::vector<KernelRow> kernel_matrix() {
  auto has = [](std::string_view word) { return word == "absent" ? "-" : word == "reference" ? "reference" : "own"; };
  std::vector<KernelRow> rows;
#define SINTER_ENTRY(name, Args, cpu, cuda) rows.push_back({#name, false, "own", has(#cpu), has(#cuda)});
  SINTER_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
#define SINTER_ENTRY(name, Args, cpu, cuda) rows.push_back({#name, true, "-", has(#cpu), has(#cuda)});
  SINTER_FUSED_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
  return rows;
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

BriefMeasuring::BriefMeasuring() { count_cuda_brief_measuring(1); }
BriefMeasuring::~BriefMeasuring() { count_cuda_brief_measuring(-1); }

void set_deterministic(core::Device device) {
  if (device.kind == core::DeviceKind::cuda) set_cuda_deterministic();
}

namespace {
std::atomic<bool> g_allows_integer_products{false};
}

void allow_integer_products(bool allowed) { g_allows_integer_products.store(allowed, std::memory_order_relaxed); }
bool allows_integer_products() { return g_allows_integer_products.load(std::memory_order_relaxed); }

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
