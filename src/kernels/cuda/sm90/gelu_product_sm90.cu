// c = gelu(pre) with pre = a b^T + bias in one kernel, which stores pre or gelu'(pre) too.
#include "kernels/cuda/sm90/gelu_sm90.cuh"
#include "kernels/cuda/sm90/sm90.h"

namespace sinter::kernels::cuda {
namespace sm90 {
namespace {

using Outputs = Tensors<Wide, void>;

// A node that takes pre, stores it or the slope there, and hands on the value. Arguments: of what it stores.
template <bool kStoresSlope>
struct Gelu : Outputs::Store {
  using Store = Outputs::Store;
  using Store::Store;

  template <class StoreCallbacks>
  struct Callbacks : StoreCallbacks {
    CUTLASS_DEVICE explicit Callbacks(StoreCallbacks&& store) : StoreCallbacks(static_cast<StoreCallbacks&&>(store)) {}

    template <class Sum, int N>
    CUTLASS_DEVICE auto visit(const cutlass::Array<Sum, N>&, int v, int, int, const cutlass::Array<float, N>& x) {
      cutlass::Array<Bf16, N> y;
      auto stored = cute::recast<uint32_t>(cute::coalesce(this->tC_rAux));  // two columns in line
#pragma unroll
      for (int i = 0; i < N; i += 2) {
        const GeluAt a = gelu_at(x[i]), b = gelu_at(x[i + 1]);
        reinterpret_cast<uint32_t*>(&y)[i / 2] = to_bf16_pair(a.value, b.value);
        stored((v * N + i) / 2) = kStoresSlope ? to_bf16_pair(a.slope, b.slope) : to_bf16_pair(x[i], x[i + 1]);
      }
      return y;
    }
  };
  template <bool kReferenceSource, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const fusion::detail::ConsumerStoreArgs<Args...>& args) {
    auto store = Store::template get_consumer_store_callbacks<kReferenceSource>(args);
    return Callbacks<decltype(store)>(cute::move(store));
  }
};

template <bool kStoresSlope>
void run_forward(Stream& stream, const FusedMatmulArgs& args) {
  using Forward = Product<Wide, ColumnMajor, void, Bf16, fusion::Sm90EVT<Gelu<kStoresSlope>, Biased<Wide>>>;
  const Tensor& stored = kStoresSlope ? args.slope : args.pre_activation;
  typename Forward::CallbackArguments callbacks{
      {{}, {static_cast<const Bf16*>(args.product.bias.raw())}, {}},  // the product, the bias (null: zeros), their sum
      {static_cast<Bf16*>(stored.raw()), Outputs::rows_of(stored.size(-1))}};
  Forward::run(stream, args.product, callbacks);
}

}  // namespace
}  // namespace sm90

void sm90_gelu_product(Stream& stream, const FusedMatmulArgs& args) {
  args.slope ? sm90::run_forward<true>(stream, args) : sm90::run_forward<false>(stream, args);
}

}  // namespace sinter::kernels::cuda
