#include <cpuid.h>
#include <fmt/core.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>

#include "base/threads.h"
#include "bench/peer.h"

extern "C" void omp_set_num_threads(int) __attribute__((weak));  // oneDNN's own threads are OpenMP's

namespace sinter::bench {
namespace {

// Where a hypervisor hides leaf 0x1D (tile palettes), oneDNN configures palette 0 and dies of an illegal instruction.
bool shows_tile_palettes() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(0x1d, 0, &a, &b, &c, &d) && a > 0;
}

dnnl::engine& engine() {
  static dnnl::engine instance = [] {
    if (!shows_tile_palettes()) dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);
    if (omp_set_num_threads) omp_set_num_threads(base::num_threads());
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return instance;
}

dnnl::memory::data_type type_of(base::DType dtype) {
  return dtype == base::DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

dnnl::memory memory_of(const kernels::Tensor& t, int64_t rows, int64_t columns, bool is_transposed) {
  dnnl::memory::dims strides = is_transposed ? dnnl::memory::dims{1, rows} : dnnl::memory::dims{columns, 1};
  return {{{rows, columns}, type_of(t.dtype()), strides}, engine(), t.raw()};
}

class OnednnProduct final : public PeerProduct {
 public:
  explicit OnednnProduct(const kernels::MatmulArgs& args) : stream_(engine()) {
    int64_t m = args.c.rows(), n = args.c.size(-1), k = args.transpose_a ? args.a.rows() : args.a.size(-1);
    dnnl::memory a = memory_of(args.a, m, k, args.transpose_a);
    dnnl::memory b = memory_of(args.b.data, k, n, args.transpose_b);
    dnnl::memory c = memory_of(args.c, m, n, false);
    dnnl::primitive_attr attributes;
    if (args.accumulate) {
      dnnl::post_ops operations;
      operations.append_sum(1.0f);
      attributes.set_post_ops(operations);
    }
    dnnl::matmul::desc description(a.get_desc(), b.get_desc(), c.get_desc());
    product_ = dnnl::matmul(dnnl::matmul::primitive_desc(description, attributes, engine()));
    arguments_ = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}};
  }
  void run() override {
    product_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  dnnl::stream stream_;
  dnnl::matmul product_;
  std::unordered_map<int, dnnl::memory> arguments_;
};

}  // namespace

std::string peer_name() {
  const dnnl::version_t* version = dnnl::version();
  return fmt::format("oneDNN {}.{}.{}{}", version->major, version->minor, version->patch,
                     shows_tile_palettes() ? "" : " (capped to avx512_core_bf16)");
}

std::unique_ptr<PeerProduct> make_peer_product(const kernels::MatmulArgs& args) {
  if (args.a.dtype() == base::DType::f16 || args.bias || args.alpha != 1.0f || args.group_offsets) return nullptr;
  try {
    return std::make_unique<OnednnProduct>(args);
  } catch (const dnnl::error& e) {  // no bf16 without AVX-512, for one
    if (e.status != dnnl_unimplemented) throw;
    return nullptr;
  }
}

}  // namespace sinter::bench
