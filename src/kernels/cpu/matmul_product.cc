// Loops, from the outside: blocks of rows and columns (bounds the scratch), blocks of K, then tasks of a few panels of
// b by many rows. A task packs its panels of b into its core's L2 cache and walks the rows of a, packed once for
// everyone, past them.
#include "kernels/cpu/matmul_product.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "base/threads.h"
#include "kernels/cpu/aligned_buffer.h"

namespace sinter::kernels::cpu {
namespace {

constexpr int64_t kMaxBlockUnits = 1024;               // of K
constexpr int64_t kMaxPackedUnits = int64_t{2} << 20;  // of a, shared by all threads: 8 MiB
constexpr int64_t kMaxPartialSums = int64_t{4} << 20;  // 16 MiB
constexpr int64_t kMaxTileElements = 32 * 64;
constexpr int64_t kLineBytes = 64;
constexpr int64_t kUnitBytes = 4;
// A c of this size is gone from the caches before it is read; a gradient, which waits for all others, sooner.
constexpr int64_t kStreamedBytes = int64_t{64} << 20;
constexpr int64_t kStreamedGradientBytes = int64_t{1} << 20;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

int64_t l2_bytes() {
  static const int64_t bytes = [] {
    int64_t found = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
    return found <= 0 ? int64_t{1} << 20 : std::clamp<int64_t>(found, int64_t{256} << 10, int64_t{4} << 20);
  }();
  return bytes;
}

// How a product is cut. Speed only: no result depends on it.
struct Blocking {
  int64_t units;          // of K in a block
  int64_t rows, columns;  // in a block of c, multiples of a panel
  int64_t task_rows;      // of one task, a multiple of a panel
  int64_t task_panels;    // of b, of one task
};

// Whether the kernel reads rows of a where they stand: whole lines of whole tiles.
bool reads_in_place(const MatmulKernel& kernel, const Product& p) {
  return kernel.rows_in_place > 0 && p.a.k_is_contiguous && p.m % kernel.rows_in_place == 0 &&
         p.k % (kernel.unit_multiple * kernel.k_per_unit) == 0 &&
         p.a.stride * kUnitBytes / kernel.k_per_unit % kLineBytes == 0 &&
         reinterpret_cast<uintptr_t>(p.a.data) % kLineBytes == 0;
}

// Units of K in a block.
int64_t choose_units(const MatmulKernel& kernel, const Product& p, int64_t total_units, bool sums_in_c) {
  int64_t most = kMaxBlockUnits;
  if (p.m <= kernel.rows && p.packed_b.data && !p.packed_b.is_narrow) {
    // One panel of rows against a weight packed ahead reads everything once: only the rows need stay in a cache.
    most = std::max(most, l2_bytes() / 2 / (kernel.rows * 4));
  } else if (!sums_in_c) {
    // Sums that cannot wait in c go through memory of their own between blocks: longer blocks, as far as a panel fits.
    most = std::clamp(l2_bytes() / 2 / (kernel.columns * 4), most, 2 * most);
  }
  int64_t num_blocks = std::max<int64_t>(1, divide_up(total_units, most));
  return std::max<int64_t>(kernel.unit_multiple, round_up(divide_up(total_units, num_blocks), kernel.unit_multiple));
}

// Panels of b in a task, `most` or somewhat fewer, that let all threads end at once.
int64_t even_panels(int64_t panels, int64_t most, int64_t row_tasks) {
  const int64_t threads = base::num_threads();
  auto longest = [&](int64_t of_task) { return divide_up(row_tasks * divide_up(panels, of_task), threads) * of_task; };
  int64_t best = most;
  for (int64_t fewer = most - 1; fewer >= divide_up(most, 2); --fewer) {
    if (longest(fewer) < longest(best)) best = fewer;
  }
  return best;
}

// Tasks of a kernel so fast that packing b shows beside many rows: as few as keep all threads busy.
void choose_few_tasks(const MatmulKernel& kernel, int64_t rows, int64_t panels, int64_t fitting, Blocking* cut) {
  const int64_t threads = base::num_threads(), many = 1024 / kernel.rows;
  const int64_t wanted = threads == 1 ? 1 : (rows < many ? 4 : 2) * threads;
  int64_t column_tasks = divide_up(panels, fitting), row_tasks = 1;
  while (row_tasks * column_tasks < wanted && rows / row_tasks >= 2 * many) row_tasks *= 2;
  if (row_tasks * column_tasks < wanted) column_tasks = std::min(panels, divide_up(wanted, row_tasks));
  if (row_tasks == 1) column_tasks = std::min(panels, round_up(column_tasks, threads));
  cut->task_rows = divide_up(rows, row_tasks) * kernel.rows;
  cut->task_panels = divide_up(panels, column_tasks);
}

Blocking choose_blocking(const MatmulKernel& kernel, const Product& p, int64_t total_units, bool sums_in_c) {
  Blocking cut;
  cut.units = choose_units(kernel, p, total_units, sums_in_c);
  bool needs_partials = total_units > cut.units && !sums_in_c;
  int64_t row_panels = divide_up(p.m, kernel.rows), column_panels = divide_up(p.n, kernel.columns);
  int64_t max_row_panels =
      reads_in_place(kernel, p) ? row_panels : std::max<int64_t>(1, kMaxPackedUnits / (cut.units * kernel.rows));
  int64_t max_column_panels = column_panels;
  if (needs_partials) {
    max_row_panels = std::min(max_row_panels, divide_up(1024, kernel.rows));
    int64_t rows = std::min(row_panels, max_row_panels) * kernel.rows;
    max_column_panels = std::max<int64_t>(1, kMaxPartialSums / (rows * kernel.columns));
  }
  // Blocks of equal size rather than full ones and a remainder.
  cut.rows = divide_up(row_panels, divide_up(row_panels, max_row_panels)) * kernel.rows;
  cut.columns = divide_up(column_panels, divide_up(column_panels, max_column_panels)) * kernel.columns;

  int64_t rows = cut.rows / kernel.rows, panels = cut.columns / kernel.columns;
  int64_t fitting = std::max<int64_t>(1, l2_bytes() / 2 / (cut.units * kernel.columns * 4));
  if (kernel.slice_units > 0 && rows > 1) {
    choose_few_tasks(kernel, rows, panels, fitting, &cut);
    return cut;
  }
  cut.task_panels = std::min(panels, fitting);
  int64_t task_row_panels = rows;
  int64_t min_row_panels = std::max<int64_t>(1, 256 / kernel.rows);  // fewer, and packing b again starts to show
  int64_t wanted = base::num_threads() == 1 ? 1 : 4 * base::num_threads();
  auto num_tasks = [&] { return divide_up(rows, task_row_panels) * divide_up(panels, cut.task_panels); };
  while (num_tasks() < wanted) {
    if (task_row_panels >= 2 * min_row_panels) {
      task_row_panels = divide_up(task_row_panels, 2);
    } else if (cut.task_panels > 1) {
      cut.task_panels = divide_up(cut.task_panels, 2);
    } else if (task_row_panels > std::max<int64_t>(1, 64 / kernel.rows)) {
      task_row_panels = divide_up(task_row_panels, 2);
    } else {
      break;
    }
  }
  int64_t row_tasks = divide_up(rows, task_row_panels);
  cut.task_rows = divide_up(rows, row_tasks) * kernel.rows;
  cut.task_panels = even_panels(panels, cut.task_panels, row_tasks);
  return cut;
}

thread_local AlignedBuffer t_packed_a;  // of the thread that called run_product
thread_local AlignedBuffer t_partials;  // likewise
thread_local AlignedBuffer t_squares;   // likewise
thread_local AlignedBuffer t_packed_b;  // of the thread that runs a task
thread_local AlignedBuffer t_sums;      // likewise

class ProductRun {
 public:
  ProductRun(const MatmulKernel& kernel, const Product& product)
      : kernel_(kernel),
        p_(product),
        total_units_(panel_units(kernel, product.k)),
        sums_in_c_(product.c_dtype == base::DType::f32 && !product.accumulate),
        is_plain_(sums_in_c_ && product.alpha == 1.0f && !product.bias),
        reads_in_place_(reads_in_place(kernel, product)),
        cut_(choose_blocking(kernel, product, total_units_, sums_in_c_)),
        streams_(is_plain_ && kernel.can_stream && total_units_ <= cut_.units && product.n % 16 == 0 &&
                 reinterpret_cast<uintptr_t>(product.c) % 64 == 0 &&
                 product.m * product.n * 4 >= (product.is_gradient ? kStreamedGradientBytes : kStreamedBytes)) {}

  void run() {
    if (!reads_in_place_) packed_a_ = t_packed_a.reserve_array<uint32_t>(cut_.rows * cut_.units);
    if (total_units_ > cut_.units && !sums_in_c_) {
      partials_ = t_partials.reserve_array<float>(cut_.rows * cut_.columns);
    }
    const int64_t num_tiles = divide_up(p_.m, kernel_.rows) * column_panels();
    if (p_.c_squares) squares_ = t_squares.reserve_array<float>(num_tiles);
    for (first_row_ = 0; first_row_ < p_.m; first_row_ += cut_.rows) {
      for (first_column_ = 0; first_column_ < p_.n; first_column_ += cut_.columns) {
        first_unit_ = 0;
        do {
          run_block();
          first_unit_ += cut_.units;
        } while (first_unit_ < total_units_);
      }
    }
    if (squares_) *p_.c_squares = static_cast<float>(std::accumulate(squares_, squares_ + num_tiles, 0.0));
  }

 private:
  int64_t column_panels() const { return divide_up(p_.n, kernel_.columns); }
  int64_t block_units() const { return std::min(cut_.units, total_units_ - first_unit_); }
  int64_t block_rows() const { return std::min(cut_.rows, p_.m - first_row_); }
  int64_t block_columns() const { return std::min(cut_.columns, p_.n - first_column_); }
  bool is_first() const { return first_unit_ == 0; }
  bool is_last() const { return first_unit_ + cut_.units >= total_units_; }
  // Elements of K in this block.
  int64_t first_k() const { return first_unit_ * kernel_.k_per_unit; }
  int64_t num_k() const { return std::min(block_units() * kernel_.k_per_unit, p_.k - first_k()); }

  void run_block() {
    if (!reads_in_place_) pack_rows();
    int64_t row_tasks = divide_up(block_rows(), cut_.task_rows);
    int64_t column_tasks = divide_up(divide_up(block_columns(), kernel_.columns), cut_.task_panels);
    base::parallel_for(row_tasks * column_tasks, 1, [&](int64_t begin, int64_t end) {
      kernel_.enter();
      for (int64_t t = begin; t < end; ++t) run_task(t % row_tasks * cut_.task_rows, t / row_tasks * cut_.task_panels);
      kernel_.leave();
    });
  }

  void pack_rows() {
    int64_t rows = block_rows();
    constexpr int64_t kGrain = 64;  // a multiple of every panel
    auto pack = [&](int64_t begin, int64_t end) {
      PackRange range{first_row_ + begin, end - begin, first_k(), num_k(), cut_.units * kernel_.rows};
      kernel_.pack_a(p_.a, range, packed_a_ + begin * cut_.units);
    };
    if (rows * block_units() < 16384) return pack(0, rows);
    base::parallel_for(divide_up(rows, kGrain), 1,
                       [&](int64_t begin, int64_t end) { pack(begin * kGrain, std::min(rows, end * kGrain)); });
  }

  // Panels [first, first + count) of this block's columns: where the first is, and how far apart they are.
  const uint32_t* panels_of_b(int64_t first_panel, int64_t count, int64_t* stride) {
    int64_t column = first_column_ + first_panel * kernel_.columns;
    int64_t global_panel = column / kernel_.columns;
    if (p_.packed_b.data && !p_.packed_b.is_narrow) {
      *stride = total_units_ * kernel_.columns;
      return static_cast<const uint32_t*>(p_.packed_b.data) + global_panel * *stride + first_unit_ * kernel_.columns;
    }
    *stride = block_units() * kernel_.columns;
    uint32_t* packed = t_packed_b.reserve_array<uint32_t>(count * *stride);
    if (p_.packed_b.is_narrow) {
      for (int64_t i = 0; i < count; ++i) {
        const uint16_t* narrow =
            static_cast<const uint16_t*>(p_.packed_b.data) + (global_panel + i) * p_.k * kernel_.columns;
        PackSource source{narrow, p_.b.dtype, kernel_.columns, false};
        kernel_.pack_b(source, {0, kernel_.columns, first_k(), num_k(), *stride}, packed + i * *stride);
      }
    } else {
      int64_t columns = std::min(count * kernel_.columns, p_.n - column);
      kernel_.pack_b(p_.b, {column, columns, first_k(), num_k(), *stride}, packed);
    }
    return packed;
  }

  void run_task(int64_t task_row, int64_t task_panel) {
    int64_t rows = std::min(cut_.task_rows, block_rows() - task_row);
    int64_t panels = std::min(cut_.task_panels, divide_up(block_columns(), kernel_.columns) - task_panel);
    int64_t b_stride = 0;
    const uint32_t* b = panels_of_b(task_panel, panels, &b_stride);
    // Every other task begins in the middle, so that two threads do not walk the same rows of a side by side.
    const int64_t row_panels = divide_up(rows, kernel_.rows);
    const int64_t start = task_panel / cut_.task_panels % 2 == 0 ? 0 : row_panels / 2;
    for (int64_t i = 0; i < row_panels; ++i) {
      const int64_t r = (start + i) % row_panels * kernel_.rows, next = (start + i + 1) % row_panels * kernel_.rows;
      const int num_rows = static_cast<int>(std::min<int64_t>(kernel_.rows, rows - r));
      Ahead ahead = rows_ahead(task_row + next, num_rows, panels);
      run_row(task_row + r, num_rows, task_panel, panels, b, b_stride, ahead);
    }
  }

  // Rows of a from this one of the block on: packed, or (`stride` then is the bytes between them) in place.
  const uint32_t* rows_of_a(int64_t row, int64_t* stride) const {
    *stride = 0;
    if (!reads_in_place_) return packed_a_ + row * cut_.units;
    *stride = p_.a.stride * static_cast<int64_t>(base::dtype_bytes(p_.a.dtype));
    const char* rows = static_cast<const char*>(p_.a.data) + (first_row_ + row) * *stride;
    return reinterpret_cast<const uint32_t*>(rows) + first_unit_;
  }

  // The rows that come next, to be asked for while others meet `panels` panels of b.
  Ahead rows_ahead(int64_t row, int64_t num_rows, int64_t panels) const {
    if (kernel_.slice_units == 0) return {};  // asks for itself
    int64_t stride = 0;
    const char* at = reinterpret_cast<const char*>(rows_of_a(row, &stride));
    const int64_t lines = block_units() * kUnitBytes / kLineBytes,
                  steps = panels * block_units() / kernel_.unit_multiple;
    const int64_t per_step = divide_up(num_rows * lines, std::max<int64_t>(1, steps));
    return reads_in_place_ ? Ahead{at, num_rows, lines, stride, per_step} : Ahead{at, 1, num_rows * lines, 0, per_step};
  }

  // A panel of rows by the task's panels of b. A kernel that slices K has one slice of its rows meet every panel of b
  // before the next: the slice stays in the first-level cache, the panels and all their sums in the second.
  void run_row(int64_t row, int num_rows, int64_t first_panel, int64_t panels, const uint32_t* b, int64_t b_stride,
               Ahead& ahead) {
    const int64_t units = block_units(), slice = panels == 1 ? units : slice_units(units);
    const int64_t tile_size = kernel_.rows * kernel_.columns;
    const bool is_sliced = slice < units;
    alignas(64) float one_tile[kMaxTileElements];
    float* sums = is_sliced ? t_sums.reserve_array<float>(panels * tile_size) : one_tile;
    int64_t a_stride = 0, u = 0;
    const uint32_t* a = rows_of_a(row, &a_stride);
    do {
      const uint32_t* a_slice = a + (reads_in_place_ ? u : u * kernel_.rows);
      for (int64_t j = 0; j < panels; ++j) {
        float* buffer = is_sliced ? sums + j * tile_size : sums;
        const Tile tile = tile_at(row, num_rows, (first_panel + j) * kernel_.columns, buffer, is_sliced);
        if (u == 0) begin_tile(tile);
        kernel_.multiply({num_rows, std::min(slice, units - u), a_slice, a_stride,
                          b + j * b_stride + u * kernel_.columns, tile.sums, tile.stride, u > 0 || !is_first()},
                         ahead);
        if (u + slice >= units) end_tile(tile);
      }
      u += slice;
    } while (u < units);
  }

  int64_t slice_units(int64_t units) const {
    if (kernel_.slice_units == 0 || units <= kernel_.slice_units) return units;
    return round_up(divide_up(units, divide_up(units, kernel_.slice_units)), kernel_.unit_multiple);
  }

  // A register tile at (row, column) of the block and where its sums stand: in `buffer`, in the partial sums, or in c.
  struct Tile {
    int64_t row, column;
    int num_rows;
    int64_t columns;  // that c has
    float* sums;
    int64_t stride;
    bool is_buffered;
    float* so_far;  // of earlier blocks of K: in the partial sums or c; null when c cannot hold them
    int64_t so_far_stride;
  };
  Tile tile_at(int64_t row, int num_rows, int64_t column, float* buffer, bool needs_buffer) const {
    Tile tile{row,    column,          num_rows, std::min<int64_t>(kernel_.columns, block_columns() - column),
              buffer, kernel_.columns, true,     nullptr,
              0};
    if (partials_) {
      tile.so_far = partials_ + row * cut_.columns + column;
      tile.so_far_stride = cut_.columns;
      tile.is_buffered = needs_buffer;
    } else if (sums_in_c_) {
      tile.so_far = static_cast<float*>(p_.c) + c_at(tile);
      tile.so_far_stride = p_.n;
      const bool ends_elsewhere = is_first() && is_last() && !is_plain_;
      tile.is_buffered = needs_buffer || tile.columns < kernel_.columns || streams_ || ends_elsewhere;
    }
    if (!tile.is_buffered) {
      tile.sums = tile.so_far;
      tile.stride = tile.so_far_stride;
    }
    return tile;
  }
  int64_t c_at(const Tile& tile) const { return (first_row_ + tile.row) * p_.n + first_column_ + tile.column; }

  void begin_tile(const Tile& tile) const {
    if (tile.is_buffered && !is_first()) {
      copy_sums(tile.so_far, tile.so_far_stride, tile.sums, tile.stride, tile.num_rows, tile.columns);
    }
  }

  void end_tile(const Tile& tile) const {
    const bool is_done = is_plain_ && !tile.is_buffered;
    if (is_last() && !is_done) {
      const int64_t bytes = static_cast<int64_t>(base::dtype_bytes(p_.c_dtype));
      void* c = static_cast<char*>(p_.c) + c_at(tile) * bytes;
      const void* bias = p_.bias ? static_cast<const char*>(p_.bias) + (first_column_ + tile.column) * bytes : nullptr;
      kernel_.finish({tile.sums, tile.stride, tile.num_rows, tile.columns, c, p_.n, p_.c_dtype, bias, p_.alpha,
                      p_.accumulate, streams_});
    } else if (tile.is_buffered) {
      copy_sums(tile.sums, tile.stride, tile.so_far, tile.so_far_stride, tile.num_rows, tile.columns);
    }
    if (squares_ && is_last()) {
      const int64_t at =
          (first_row_ + tile.row) / kernel_.rows * column_panels() + (first_column_ + tile.column) / kernel_.columns;
      // What was streamed stands in the tile, everything else in the cache.
      squares_[at] =
          streams_ ? kernel_.sum_squares(tile.sums, tile.stride, tile.num_rows, tile.columns)
                   : kernel_.sum_squares(static_cast<float*>(p_.c) + c_at(tile), p_.n, tile.num_rows, tile.columns);
    }
  }

  static void copy_sums(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
                        int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * from_stride, columns, to + r * to_stride);
  }

  const MatmulKernel& kernel_;
  const Product& p_;
  const int64_t total_units_;
  const bool sums_in_c_;       // partial sums over K can stand in c itself
  const bool is_plain_;        // and need nothing more at the end
  const bool reads_in_place_;  // a is not packed
  const Blocking cut_;
  const bool streams_;  // c is written past the caches
  uint32_t* packed_a_ = nullptr;
  float* partials_ = nullptr;                                  // (cut_.rows, cut_.columns)
  float* squares_ = nullptr;                                   // (panels of rows, panels of columns) of c
  int64_t first_row_ = 0, first_column_ = 0, first_unit_ = 0;  // of the block now worked on
};

}  // namespace

void run_product(const MatmulKernel& kernel, const Product& product) {
  if (product.m == 0 || product.n == 0) return;
  ProductRun(kernel, product).run();
}

}  // namespace sinter::kernels::cpu
