// Loops, from the outside: blocks of rows and columns (bounds the scratch), blocks of K, tasks (matmul_blocking.h), and
// in a task strips of c: one panel of the side that passes by, with all panels that the task keeps.
#include "kernels/cpu/matmul/matmul_product.h"

#include <algorithm>
#include <numeric>

#include "base/threads.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/matmul/matmul_blocking.h"

namespace sinter::kernels::cpu {
namespace {

constexpr int64_t kMaxTileElements = 32 * 64;
// A c of this size is gone from the caches before it is read; a gradient, which waits for all others, sooner.
constexpr int64_t kStreamedBytes = int64_t{64} << 20;
constexpr int64_t kStreamedGradientBytes = int64_t{1} << 20;
constexpr int64_t kStreamedPiecesBytes = int64_t{8} << 20;

thread_local AlignedBuffer t_packed;    // for everyone; of the thread that called run_product
thread_local AlignedBuffer t_partials;  // likewise
thread_local AlignedBuffer t_squares;   // likewise
thread_local AlignedBuffer t_kept;      // of the thread that runs a task
thread_local AlignedBuffer t_sums;      // likewise

class ProductRun {
 public:
  ProductRun(const MatmulKernel& kernel, const Product& product)
      : kernel_(kernel),
        p_(product),
        total_units_(panel_units(kernel, product.k)),
        column_panels_(divide_up(product.n, kernel.columns)),
        adds_in_c_(adds_in_c(kernel, product)),
        sums_in_c_(product.c_dtype == base::DType::f32 && product.accumulate == adds_in_c_ && !product.c_is_turned),
        is_plain_(is_plain(product) || adds_in_c_),
        reads_in_place_(reads_in_place(kernel, product)),
        reads_narrow_(reads_narrow(kernel, product)),
        cut_(choose_blocking(kernel, product, sums_in_c_)),
        streams_(streams()) {}

  void run() {
    if (cut_.keeps_rows || !reads_in_place_) {
      packed_ = t_packed.reserve_array<uint32_t>((cut_.keeps_rows ? cut_.columns : cut_.rows) * cut_.units);
    }
    if (total_units_ > cut_.units && !sums_in_c_) {
      partials_ = t_partials.reserve_array<float>(cut_.rows * cut_.columns);
    }
    const int64_t num_tiles = divide_up(p_.m, kernel_.rows) * column_panels_;
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
  // Whether sums begin from what c holds and c then needs nothing more. Those of a kernel that slices K gather in a
  // buffer, to which c is as well added at the end.
  static bool adds_in_c(const MatmulKernel& kernel, const Product& p) {
    Product overwriting = p;
    overwriting.accumulate = false;
    return p.accumulate && is_plain(overwriting) && !p.addend && !p.pieces && !p.c_is_turned && kernel.slice_units == 0;
  }
  // Whether c is written past the caches: whole lines that nobody adds to, and more of them than a cache keeps.
  bool streams() const {
    const int64_t width = p_.c_is_turned ? p_.m : p_.n, bytes = static_cast<int64_t>(base::dtype_bytes(p_.c_dtype));
    if (!kernel_.can_stream || reinterpret_cast<uintptr_t>(p_.c) % kLineBytes != 0 || p_.accumulate || p_.pieces ||
        p_.c_stride != width)
      return false;
    const bool is_large = p_.m * p_.n * bytes >= (p_.is_gradient ? kStreamedGradientBytes : kStreamedBytes);
    if (p_.c_dtype == base::DType::bf16) return is_large && width % kernel_.columns == 0;
    return is_large && is_plain_ && total_units_ <= cut_.units && width * bytes % kLineBytes == 0;
  }
  int64_t block_units() const { return std::min(cut_.units, total_units_ - first_unit_); }
  int64_t block_rows() const { return std::min(cut_.rows, p_.m - first_row_); }
  int64_t block_columns() const { return std::min(cut_.columns, p_.n - first_column_); }
  bool is_first() const { return first_unit_ == 0; }
  bool is_last() const { return first_unit_ + cut_.units >= total_units_; }
  // Elements of K in this block.
  int64_t first_k() const { return first_unit_ / kernel_.step_units * kernel_.step_k; }
  int64_t num_k() const { return std::min(block_units() / kernel_.step_units * kernel_.step_k, p_.k - first_k()); }

  void run_block() {
    if (packed_) pack_for_everyone();
    int64_t row_tasks = divide_up(block_rows(), cut_.task_rows);
    int64_t column_tasks = divide_up(divide_up(block_columns(), kernel_.columns), cut_.task_panels);
    base::parallel_for(row_tasks * column_tasks, 1, [&](int64_t begin, int64_t end) {
      kernel_.enter();
      for (int64_t t = begin; t < end; ++t) run_task(t % row_tasks * cut_.task_rows, t / row_tasks * cut_.task_panels);
      kernel_.leave();
    });
  }

  // The side that passes by, panels cut_.units of K apart.
  void pack_for_everyone() {
    const bool is_b = cut_.keeps_rows;
    const int64_t lines = is_b ? block_columns() : block_rows();
    const int64_t grain = is_b ? 192 : 64;  // multiples of every panel
    auto pack = [&](int64_t begin, int64_t end) {
      if (is_b) {
        pack_columns(begin, end - begin, cut_.units, packed_ + begin * cut_.units);
      } else {
        pack_rows(begin, end - begin, cut_.units, packed_ + begin * cut_.units);
      }
    };
    if (lines * block_units() < 16384) return pack(0, lines);
    base::parallel_for(divide_up(lines, grain), 1,
                       [&](int64_t begin, int64_t end) { pack(begin * grain, std::min(lines, end * grain)); });
  }
  // Lines of this block into panels `units` of K apart.
  void pack_rows(int64_t row, int64_t count, int64_t units, uint32_t* panels) const {
    kernel_.pack_a(p_.a, {first_row_ + row, count, first_k(), num_k(), units * kernel_.rows}, panels);
  }
  void pack_columns(int64_t column, int64_t count, int64_t units, uint32_t* panels) const {
    kernel_.pack_b(p_.b, {first_column_ + column, count, first_k(), num_k(), units * kernel_.columns}, panels);
  }

  // Panels of both sides, from the first row and the first panel of a task on.
  struct Operands {
    const uint32_t *a, *b;
    int64_t a_panel_stride, b_panel_stride;  // in units
    int64_t a_row_bytes;                     // between rows in place; 0: packed
  };

  Operands keep_rows(int64_t row, int64_t num_rows, int64_t panel) const {
    const int64_t units = block_units();
    uint32_t* kept = t_kept.reserve_array<uint32_t>(round_up(num_rows, kernel_.rows) * units);
    pack_rows(row, num_rows, units, kept);
    const int64_t b_stride = cut_.units * kernel_.columns;
    return {kept, packed_ + panel * b_stride, units * kernel_.rows, b_stride, 0};
  }

  Operands keep_columns(int64_t row, int64_t panel, int64_t num_panels) const {
    Operands x{};
    x.b = panels_of_b(panel, num_panels, &x.b_panel_stride);
    if (!reads_in_place_) {
      x.a = packed_ + row * cut_.units;
      x.a_panel_stride = cut_.units * kernel_.rows;
      return x;
    }
    x.a_row_bytes = p_.a.stride * static_cast<int64_t>(base::dtype_bytes(p_.a.dtype));
    x.a_panel_stride = kernel_.rows * x.a_row_bytes / kUnitBytes;
    const char* rows = static_cast<const char*>(p_.a.data) + (first_row_ + row) * x.a_row_bytes;
    x.a = reinterpret_cast<const uint32_t*>(rows) + first_unit_;
    return x;
  }

  // What `units` of K take in a panel that keeps its elements. Columns are even.
  int64_t narrow_units(int64_t units) const {
    return units / kernel_.step_units * kernel_.step_k * kernel_.columns *
           static_cast<int64_t>(base::dtype_bytes(p_.b.dtype)) / kUnitBytes;
  }

  // Panels [first, first + count) of this block's columns: where the first is, and how far apart they are.
  const uint32_t* panels_of_b(int64_t first_panel, int64_t count, int64_t* stride) const {
    int64_t column = first_panel * kernel_.columns;
    int64_t global_panel = (first_column_ + column) / kernel_.columns;
    if (p_.packed_b.data && !p_.packed_b.is_narrow) {
      *stride = total_units_ * kernel_.columns;
      return static_cast<const uint32_t*>(p_.packed_b.data) + global_panel * *stride + first_unit_ * kernel_.columns;
    }
    if (reads_narrow_) {
      *stride = narrow_units(total_units_);
      return static_cast<const uint32_t*>(p_.packed_b.data) + global_panel * *stride + narrow_units(first_unit_);
    }
    *stride = block_units() * kernel_.columns;
    uint32_t* packed = t_kept.reserve_array<uint32_t>(count * *stride);
    if (p_.packed_b.is_narrow) {
      for (int64_t i = 0; i < count; ++i) {
        const uint32_t* narrow =
            static_cast<const uint32_t*>(p_.packed_b.data) + (global_panel + i) * narrow_units(total_units_);
        PackSource source{narrow, p_.b.dtype, kernel_.columns, false};
        kernel_.pack_b(source, {0, kernel_.columns, first_k(), num_k(), *stride}, packed + i * *stride);
      }
    } else {
      pack_columns(column, std::min(count * kernel_.columns, block_columns() - column), block_units(), packed);
    }
    return packed;
  }

  void run_task(int64_t task_row, int64_t task_panel) {
    int64_t rows = std::min(cut_.task_rows, block_rows() - task_row);
    int64_t panels = std::min(cut_.task_panels, divide_up(block_columns(), kernel_.columns) - task_panel);
    const Operands x =
        cut_.keeps_rows ? keep_rows(task_row, rows, task_panel) : keep_columns(task_row, task_panel, panels);
    // Every other task begins in the middle, so that two threads do not walk the same lines side by side.
    const int64_t row_panels = divide_up(rows, kernel_.rows), strips = cut_.keeps_rows ? panels : row_panels;
    const int64_t task = cut_.keeps_rows ? task_row / cut_.task_rows : task_panel / cut_.task_panels;
    const int64_t start = task % 2 == 0 ? 0 : strips / 2;
    const int64_t row_panel = (first_row_ + task_row) / kernel_.rows,
                  column_panel = first_column_ / kernel_.columns + task_panel;
    auto strip_at = [&](int64_t at) -> Strip {
      if (cut_.keeps_rows)
        return {task_row, rows, task_panel + at, 1, x.a, x.b + at * x.b_panel_stride, row_panel, column_panel + at};
      const int64_t r = at * kernel_.rows;
      return {task_row + r,
              std::min<int64_t>(kernel_.rows, rows - r),
              task_panel,
              panels,
              x.a + at * x.a_panel_stride,
              x.b,
              row_panel + at,
              column_panel};
    };
    for (int64_t i = 0; i < strips; ++i) {
      const int64_t at = (start + i) % strips, next = (start + i + 1) % strips;
      Ahead ahead = panel_ahead(x, next, cut_.keeps_rows ? row_panels : panels);
      run_strip(strip_at(at), strip_at(next), x, ahead);
    }
  }

  // The passing panel that comes next, to be asked for while another meets `kept` panels.
  Ahead panel_ahead(const Operands& x, int64_t panel, int64_t kept) const {
    const uint32_t* at = cut_.keeps_rows ? x.b + panel * x.b_panel_stride : x.a + panel * x.a_panel_stride;
    const int64_t width = cut_.keeps_rows ? kernel_.columns : kernel_.rows;
    const int64_t lines = block_units() * kUnitBytes / kLineBytes, steps = kept * block_units() / kernel_.step_units;
    const int64_t per_step = divide_up(width * lines, std::max<int64_t>(1, steps));
    const char* first = reinterpret_cast<const char*>(at);
    Ahead ahead = x.a_row_bytes ? Ahead{first, width, lines, x.a_row_bytes, per_step}
                                : Ahead{first, 1, width * lines, 0, per_step};
    ahead.bytes_per_unit = divide_up(width * kUnitBytes, kept);
    return ahead;
  }

  // A piece of c: `num_rows` rows by `num_panels` panels of columns, either of which is one panel, and its operands.
  struct Strip {
    int64_t row, num_rows, panel, num_panels;
    const uint32_t *a, *b;
    int64_t row_panel, column_panel;  // of all of c: where it begins
  };

  void multiply(const TileProduct& product, Ahead& ahead) const {
    if (reads_narrow_) return kernel_.multiply_narrow(product, p_.b.dtype, ahead);
    kernel_.multiply(product, ahead);
  }

  // Whether a strip's sums stand in c from the first to the last and need nothing more.
  bool is_direct(const Strip& strip) const {
    const int64_t end = (strip.panel + strip.num_panels) * kernel_.columns;
    return sums_in_c_ && is_plain_ && !partials_ && !p_.pieces && !streams_ && kernel_.slice_units == 0 &&
           end <= block_columns();
  }
  // Such a strip, with as little around the products as can be: of a short K it is a tenth of the time.
  void run_direct_strip(const Strip& strip, const Strip& next, const Operands& x, Ahead& ahead) {
    const bool carries_on = !is_first() || adds_in_c_;
    const int64_t num_tiles = cut_.keeps_rows ? divide_up(strip.num_rows, kernel_.rows) : strip.num_panels;
    const int64_t a_step = cut_.keeps_rows ? x.a_panel_stride : 0, b_step = cut_.keeps_rows ? 0 : x.b_panel_stride,
                  c_step = cut_.keeps_rows ? kernel_.rows * p_.c_stride : kernel_.columns;
    auto c_of = [&](const Strip& s) {
      return static_cast<float*>(p_.c) + (first_row_ + s.row) * p_.c_stride + first_column_ + s.panel * kernel_.columns;
    };
    float* square = squares_ ? squares_ + strip.row_panel * column_panels_ + strip.column_panel : nullptr;
    TileProduct product{kernel_.rows, block_units(), strip.a,    x.a_row_bytes,  strip.b,
                        c_of(strip),  p_.c_stride,   carries_on, cut_.keeps_rows};
    for (int64_t t = 0; t < num_tiles; ++t) {
      const int64_t rows_left = cut_.keeps_rows ? strip.num_rows - t * kernel_.rows : strip.num_rows;
      product.num_rows = static_cast<int>(std::min<int64_t>(kernel_.rows, rows_left));
      if (carries_on) {
        const float* coming = t + 1 < num_tiles ? product.tile + c_step : c_of(next);
        for (int r = 0; r < product.num_rows; ++r) ask_for(coming + r * p_.c_stride, kernel_.columns);
      }
      multiply(product, ahead);
      if (square) {
        *square = kernel_.sum_squares(product.tile, p_.c_stride, product.num_rows, kernel_.columns);
        square += cut_.keeps_rows ? column_panels_ : 1;
      }
      product.a += a_step, product.b += b_step, product.tile += c_step;
    }
  }

  // A kernel that slices K has one slice of the passing panel meet every kept panel before the next: the slice stays in
  // the first-level cache, the kept panels and all their sums in the second.
  void run_strip(const Strip& strip, const Strip& next, const Operands& x, Ahead& ahead) {
    if (is_direct(strip)) return run_direct_strip(strip, next, x, ahead);
    const int64_t units = block_units(), row_panels = divide_up(strip.num_rows, kernel_.rows);
    const int64_t num_tiles = row_panels * strip.num_panels, tile_size = kernel_.rows * kernel_.columns;
    const int64_t slice = num_tiles == 1 || reads_narrow_ ? units : slice_units(units);
    const bool is_sliced = slice < units, is_buffered = is_sliced && !partials_;
    const bool carries_on = !is_first() || adds_in_c_;  // from sums in memory
    alignas(64) float one_tile[kMaxTileElements];
    float* sums = is_buffered ? t_sums.reserve_array<float>(num_tiles * tile_size) : one_tile;
    int64_t u = 0;
    do {
      const bool begins = u == 0, ends = u + slice >= units;
      // Buffered sums that neither come from elsewhere nor end here need not be asked where they stand.
      const bool stays = is_buffered && !ends && (!begins || !carries_on);
      TileProduct product{kernel_.rows,    std::min(slice, units - u), nullptr,        x.a_row_bytes, nullptr, sums,
                          kernel_.columns, !begins || carries_on,      cut_.keeps_rows};
      int64_t i = 0, j = 0;  // panels of the strip
      for (int64_t t = 0; t < num_tiles; ++t) {
        const int64_t r = i * kernel_.rows;
        product.num_rows = static_cast<int>(std::min<int64_t>(kernel_.rows, strip.num_rows - r));
        product.a = strip.a + i * x.a_panel_stride + (x.a_row_bytes ? u : u * kernel_.rows);
        product.b = strip.b + j * x.b_panel_stride + u * kernel_.columns;
        float* buffer = is_buffered ? sums + t * tile_size : sums;
        if (stays) {
          product.tile = buffer;
          multiply(product, ahead);
        } else {
          const Tile tile =
              tile_at(strip.row + r, product.num_rows, (strip.panel + j) * kernel_.columns, buffer, is_sliced);
          if (begins) begin_tile(tile);
          if (begins && carries_on) ask_for_next_sums(strip, next, i, j);
          if (ends && is_last()) ask_for_piece(tile);
          product.tile = tile.sums;
          product.tile_stride = tile.stride;
          multiply(product, ahead);
          if (ends) end_tile(tile);
          if (ends && squares_)
            squares_[(strip.row_panel + i) * column_panels_ + strip.column_panel + j] = squares_of(tile);
        }
        if (++j == strip.num_panels) j = 0, ++i;
      }
      u += slice;
    } while (u < units);
  }

  int64_t slice_units(int64_t units) const {
    if (kernel_.slice_units == 0 || units <= kernel_.slice_units) return units;
    return round_up(divide_up(units, divide_up(units, kernel_.slice_units)), kernel_.step_units);
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
      tile.so_far = partials_ + row * cut_.columns + column * kernel_.rows;
      tile.so_far_stride = kernel_.columns;
      tile.is_buffered = false;
    } else if (sums_in_c_) {
      tile.so_far = static_cast<float*>(p_.c) + c_at(tile);
      tile.so_far_stride = p_.c_stride;
      const bool ends_elsewhere = is_first() && is_last() && !is_plain_;
      tile.is_buffered = needs_buffer || tile.columns < kernel_.columns || streams_ || ends_elsewhere;
    }
    if (!tile.is_buffered) {
      tile.sums = tile.so_far;
      tile.stride = tile.so_far_stride;
    }
    return tile;
  }
  int64_t c_at(const Tile& tile) const {
    const int64_t row = first_row_ + tile.row, column = first_column_ + tile.column;
    return p_.c_is_turned ? column * p_.c_stride + row : row * p_.c_stride + column;
  }

  void begin_tile(const Tile& tile) const {
    if (tile.is_buffered && (!is_first() || adds_in_c_)) {
      copy_sums(tile.so_far, tile.so_far_stride, tile.sums, tile.stride, tile.num_rows, tile.columns);
    }
  }

  // Before the sums of the tile after that at panels (i, j) of a strip are carried on.
  void ask_for_next_sums(const Strip& strip, const Strip& next, int64_t i, int64_t j) const {
    const int64_t row = strip.row + i * kernel_.rows, row_below = row + kernel_.rows;
    if (j + 1 < strip.num_panels) return ask_for_sums(row, strip.panel + j + 1);
    if (row_below < strip.row + strip.num_rows) return ask_for_sums(row_below, strip.panel);
    ask_for_sums(next.row, next.panel);
  }
  void ask_for_sums(int64_t row, int64_t panel) const {
    const int64_t column = panel * kernel_.columns;
    if (partials_) {
      return ask_for(partials_ + row * cut_.columns + column * kernel_.rows, int64_t{kernel_.rows} * kernel_.columns);
    }
    if (!sums_in_c_) return;
    const float* c = static_cast<const float*>(p_.c) + (first_row_ + row) * p_.c_stride + first_column_ + column;
    const int64_t rows = std::min<int64_t>(kernel_.rows, block_rows() - row),
                  columns = std::min<int64_t>(kernel_.columns, block_columns() - column);
    for (int64_t r = 0; r < rows; ++r) ask_for(c + r * p_.c_stride, columns);
  }

  // Before the last sums of a tile: what it will be added to, or what is done with it, reads memory.
  void ask_for_piece(const Tile& tile) const {
    if (p_.pieces) return p_.pieces->ask(piece_at(tile));
    if (!p_.accumulate || adds_in_c_ || p_.c_is_turned) return;
    const int64_t bytes = static_cast<int64_t>(base::dtype_bytes(p_.c_dtype));
    const char* row = static_cast<const char*>(p_.addend ? p_.addend : p_.c) + c_at(tile) * bytes;
    for (int64_t r = 0; r < tile.num_rows; ++r, row += p_.c_stride * bytes) ask_for(row, tile.columns * bytes);
  }
  Block piece_at(const Tile& tile) const {
    return {first_row_ + tile.row, tile.num_rows, first_column_ + tile.column, tile.columns};
  }

  void end_tile(const Tile& tile) const {
    const bool is_done = sums_in_c_ && is_plain_ && !tile.is_buffered;
    if (is_last()) {
      if (p_.pieces) {
        hand_over(tile, is_done);
      } else if (!is_done) {
        write_tile(tile);
      }
    } else if (tile.is_buffered) {
      copy_sums(tile.sums, tile.stride, tile.so_far, tile.so_far_stride, tile.num_rows, tile.columns);
    }
  }

  // What was streamed or turned stands in the tile (turned products have nothing added), everything else in the cache.
  float squares_of(const Tile& tile) const {
    return streams_ || p_.c_is_turned
               ? kernel_.sum_squares(tile.sums, tile.stride, tile.num_rows, tile.columns)
               : kernel_.sum_squares(static_cast<float*>(p_.c) + c_at(tile), p_.c_stride, tile.num_rows, tile.columns);
  }

  const void* bias_at(const Tile& tile) const {
    const int64_t bytes = static_cast<int64_t>(base::dtype_bytes(p_.c_dtype));
    return p_.bias ? static_cast<const char*>(p_.bias) + (first_column_ + tile.column) * bytes : nullptr;
  }
  void write_tile(const Tile& tile) const {
    const int64_t at = c_at(tile) * static_cast<int64_t>(base::dtype_bytes(p_.c_dtype));
    char* c = static_cast<char*>(p_.c) + at;
    const void* added = p_.addend ? static_cast<const char*>(p_.addend) + at : c;
    if (!p_.accumulate || adds_in_c_) added = nullptr;
    if (p_.c_is_turned) {
      alignas(64) float turned[kMaxTileElements];
      kernel_.transpose(tile.sums, tile.stride, turned);
      kernel_.finish({turned, kernel_.rows, tile.columns, tile.num_rows, c, p_.c_stride, p_.c_dtype, nullptr, p_.alpha,
                      added, streams_});
    } else {
      kernel_.finish({tile.sums, tile.stride, tile.num_rows, tile.columns, c, p_.c_stride, p_.c_dtype, bias_at(tile),
                      p_.alpha, added, streams_});
    }
  }
  void hand_over(const Tile& tile, bool is_done) const {
    const bool streams =
        kernel_.can_stream && p_.m * p_.n * static_cast<int64_t>(base::dtype_bytes(p_.c_dtype)) >= kStreamedPiecesBytes;
    if (is_done) return p_.pieces->take(piece_at(tile), tile.sums, tile.stride, streams);
    alignas(64) float values[kMaxTileElements];
    kernel_.finish({tile.sums, tile.stride, tile.num_rows, tile.columns, values, kernel_.columns, p_.c_dtype,
                    bias_at(tile), p_.alpha, nullptr, false});
    p_.pieces->take(piece_at(tile), values, kernel_.columns, streams);
  }

  static void copy_sums(const float* from, int64_t from_stride, float* to, int64_t to_stride, int64_t rows,
                        int64_t columns) {
    for (int64_t r = 0; r < rows; ++r) std::copy_n(from + r * from_stride, columns, to + r * to_stride);
  }

  const MatmulKernel& kernel_;
  const Product& p_;
  const int64_t total_units_;
  const int64_t column_panels_;
  const bool adds_in_c_;       // sums begin from what c holds
  const bool sums_in_c_;       // partial sums over K can stand in c itself
  const bool is_plain_;        // and need nothing more at the end
  const bool reads_in_place_;  // a is not packed
  const bool reads_narrow_;    // panels of b hold 2-byte elements
  const Blocking cut_;
  const bool streams_;                                         // c is written past the caches
  uint32_t* packed_ = nullptr;                                 // the side that passes by, of this block; null: in place
  float* partials_ = nullptr;                                  // (panels of rows, panels of columns, a tile's sums)
  float* squares_ = nullptr;                                   // (panels of rows, panels of columns) of c
  int64_t first_row_ = 0, first_column_ = 0, first_unit_ = 0;  // of the block now worked on
};

}  // namespace

void run_product(const MatmulKernel& kernel, const Product& product) {
  if (product.m == 0 || product.n == 0) return;
  if (!is_better_turned(kernel, product)) return ProductRun(kernel, product).run();
  Product turned = product;
  std::swap(turned.m, turned.n);
  std::swap(turned.a, turned.b);
  turned.c_is_turned = true;
  ProductRun(kernel, turned).run();
}

}  // namespace sinter::kernels::cpu
