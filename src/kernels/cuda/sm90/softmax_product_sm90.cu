// The exponentials of a softmax in the product that makes its logits: neither the logits nor a pass over them exist.
#include "kernels/cuda/sm90/cutlass_sm90.cuh"
#include "kernels/cuda/sm90/sm90.h"
#include "kernels/cuda/softmax_rows.h"

namespace sinter::kernels::cuda {
namespace sm90 {
namespace {

// The epilogue: terms in place of logits, and their sums over the tile's columns. A thread holds of every subtile two
// rows that are 8 apart, and of both the same columns; 4 threads in line share a row.
struct TermsArguments {
  const float* shifts;
  const int32_t* targets;
  float* sums;
};
struct ToTerms : Node<TermsArguments> {
  using Node::Node;

  // Of one thread and one tile. kRows: rows it holds; kStep: rows of a subtile; Places: where its elements lie, from
  // its first one on.
  template <int kRows, int kStep, class Places>
  struct Callbacks : fusion::EmptyConsumerStoreCallbacks {
    Params params;
    Places places;
    int first_row, num_rows, num_columns, tile;  // num_columns: from the thread's first on
    float shift[kRows], sum[kRows];
    int target[kRows];  // as num_columns

    CUTLASS_DEVICE Callbacks(const Params& given, const Places& at, int row, int rows, int column, int columns, int n)
        : params(given), places(at), first_row(row), num_rows(rows), num_columns(columns - column), tile(n) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        bool exists = row_of(r) < num_rows;
        shift[r] = exists ? params.shifts[row_of(r)] : INFINITY;
        target[r] = exists ? params.targets[row_of(r)] - column : -1;
        sum[r] = 0;
      }
    }
    CUTLASS_DEVICE int row_of(int r) const { return first_row + r / 2 * kStep + r % 2 * 8; }

    template <int N>
    CUTLASS_DEVICE cutlass::Array<Bf16, N> visit(const cutlass::Array<float, N>& logits, int epi_v, int epi_m,
                                                 int epi_n) {
      cutlass::Array<Bf16, N> result;
      auto subtile = places(cute::_, cute::_, cute::_, epi_m, epi_n);
#pragma unroll
      for (int i = 0; i < N; i += 2) {  // two columns in line
        auto place = subtile(epi_v * N + i);
        int r = 2 * epi_m + cute::get<0>(place) / 8 % 2, column = cute::get<1>(place);
        float a = term(logits[i], shift[r]), b = term(logits[i + 1], shift[r]);
        const bool exists = column < num_columns;  // both or neither: columns come in multiples of 8
        if (!exists || column == target[r]) a = 0;
        if (!exists || column + 1 == target[r]) b = 0;
        __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
        uint32_t bits = reinterpret_cast<const uint32_t&>(pair);
        reinterpret_cast<uint32_t*>(&result)[i / 2] = bits;
        sum[r] += __uint_as_float(bits << 16) + __uint_as_float(bits & 0xffff0000u);  // what is stored
      }
      return result;
    }

    CUTLASS_DEVICE void end() {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        float whole = sum[r];
        whole += __shfl_xor_sync(0xffffffffu, whole, 1);
        whole += __shfl_xor_sync(0xffffffffu, whole, 2);
        if (threadIdx.x % 4 == 0 && row_of(r) < num_rows) params.sums[int64_t{tile} * num_rows + row_of(r)] = whole;
      }
    }

    CUTLASS_DEVICE static float term(float logit, float shift) {
      float power = fmaf(logit, kLog2e, -shift), result;
      asm("min.NaN.f32 %0, %1, %2;" : "=f"(power) : "f"(power), "f"(kMostPower));
      asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(power));
      return result;
    }
  };

  template <bool kReferenceSource, class Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const Args& args) {
    auto places = args.tCcD;  // (CPY, CPY_M, CPY_N, EPI_M, EPI_N)
    constexpr int kRows = 2 * decltype(cute::size<3>(places))::value;
    constexpr int kStep = decltype(cute::size<0>(args.epi_tile))::value;
    auto [rows, columns, inner, batch] = args.problem_shape_mnkl;
    auto [m, n, k, l] = args.tile_coord_mnkl;
    // residue: from the thread's first element to the end of the matrix
    return Callbacks<kRows, kStep, decltype(places)>(params, places, rows - int(cute::get<0>(args.residue_tCcD)), rows,
                                                     columns - int(cute::get<1>(args.residue_tCcD)), columns, n);
  }
};

using Terms = Product<Wide, ColumnMajor, void, Bf16, ToTerms>;

}  // namespace
}  // namespace sm90

int64_t sm90_softmax_tile() { return sm90::Wide::kColumns; }

void sm90_softmax_product(Stream& stream, const SoftmaxTerms& args) {
  MatmulArgs product;
  product.a = args.x, product.b.data = args.weight, product.c = args.terms;
  sm90::Terms::run(stream, product, {args.shifts.data<float>(), args.targets.data<int32_t>(), args.sums.data<float>()});
}

}  // namespace sinter::kernels::cuda
