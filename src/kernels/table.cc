#include "kernels/table.h"

#include <string_view>

#include "base/error.h"

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

}  // namespace sinter::kernels
