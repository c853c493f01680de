#include "kernels/cpu/matmul/matmul_blocking.h"

#include <unistd.h>

#include <algorithm>

#include "base/threads.h"

namespace sinter::kernels::cpu {
namespace {

constexpr int64_t kMaxBlockUnits = 1024;               // of K, and no fewer elements of it
constexpr int64_t kMaxPackedUnits = int64_t{2} << 20;  // of one side, packed for all threads: 8 MiB
constexpr int64_t kMaxPartialSums = int64_t{4} << 20;  // 16 MiB

int64_t l2_bytes() {
  static const int64_t bytes = [] {
    int64_t found = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
    return found <= 0 ? int64_t{1} << 20 : std::clamp<int64_t>(found, int64_t{256} << 10, int64_t{4} << 20);
  }();
  return bytes;
}

// Packing for everyone writes to memory and reads back, packing for a task stays in a cache: the larger side is kept.
// Where K is short c matters too, and is written in longer stretches when columns are kept: rows must be far more.
bool keeps_rows(const MatmulKernel& kernel, const Product& p) {
  constexpr int64_t kLongK = 1024;
  const bool has_more_rows = p.k >= kLongK ? p.m > p.n : p.m >= 2 * p.n;
  return has_more_rows && !p.packed_b.data && !reads_in_place(kernel, p);
}

// Units of K in a block. The longer it is, the fewer panels a core keeps and the more often the other side passes by;
// the shorter, the more often sums wait in memory. In the middle K may as well be one block, and no sum waits.
int64_t choose_units(const MatmulKernel& kernel, const Product& p) {
  const int64_t total_units = panel_units(kernel, p.k);
  int64_t most = std::max(kMaxBlockUnits, kMaxBlockUnits * kernel.step_units / kernel.step_k);
  if (p.m <= kernel.rows && p.packed_b.data && (!p.packed_b.is_narrow || reads_narrow(kernel, p))) {
    // One panel of rows against a weight packed ahead reads everything once: only the rows need stay in a cache.
    most = std::max(most, l2_bytes() / 2 / (kernel.rows * kUnitBytes));
  } else {
    const int64_t fewest = kernel.slice_units > 0 ? 4 : 1;  // panels that a core should still keep
    const bool fits = fewest * total_units * kernel.columns * kUnitBytes <= l2_bytes() / 2;
    if (total_units <= 2 * most && fits) most = 2 * most;
  }
  int64_t num_blocks = std::max<int64_t>(1, divide_up(total_units, most));
  return std::max<int64_t>(kernel.step_units, round_up(divide_up(total_units, num_blocks), kernel.step_units));
}

// Panels of the two sides: in a block, then in a task.
struct Panels {
  int64_t passing, kept;
};

// Kept panels of a task, `most` or somewhat fewer, that let all threads end at once.
int64_t even_panels(int64_t panels, int64_t most, int64_t passing_tasks) {
  const int64_t threads = base::num_threads();
  auto longest = [&](int64_t of_task) {
    return divide_up(passing_tasks * divide_up(panels, of_task), threads) * of_task;
  };
  int64_t best = most;
  for (int64_t fewer = most - 1; fewer >= divide_up(most, 2); --fewer) {
    if (longest(fewer) < longest(best)) best = fewer;
  }
  return best;
}

// Tasks of a kernel so fast that packing what is kept shows beside many passing lines: as few as keep all threads busy.
// `width`: lines of a passing panel; `fitting`: panels that a core can keep.
Panels choose_few_tasks(Panels block, int64_t width, int64_t fitting) {
  const int64_t threads = base::num_threads(), many = 1024 / width;
  const int64_t wanted = threads == 1 ? 1 : (block.passing < many ? 4 : 2) * threads;
  int64_t kept_tasks = divide_up(block.kept, fitting), passing_tasks = 1;
  while (passing_tasks * kept_tasks < wanted && block.passing / passing_tasks >= 2 * many) passing_tasks *= 2;
  if (passing_tasks * kept_tasks < wanted) kept_tasks = std::min(block.kept, divide_up(wanted, passing_tasks));
  if (passing_tasks == 1) kept_tasks = std::min(block.kept, round_up(kept_tasks, threads));
  return {divide_up(block.passing, passing_tasks),
          even_panels(block.kept, divide_up(block.kept, kept_tasks), passing_tasks)};
}

// `few`: kept panels with fewer of which the other side would pass by too often, and stretches of c be too short.
Panels choose_tasks(Panels block, int64_t width, int64_t fitting, int64_t few) {
  constexpr int64_t kTasksPerThread = 8;                          // so that no thread waits long for the last one
  const int64_t min_passing = std::max<int64_t>(1, 256 / width);  // fewer, and packing again starts to show
  const int64_t wanted = base::num_threads() == 1 ? 1 : kTasksPerThread * base::num_threads();
  Panels task{block.passing, std::min({block.kept, fitting, std::max(few, block.kept / wanted)})};
  while (divide_up(block.passing, task.passing) * divide_up(block.kept, task.kept) < wanted) {
    if (task.passing >= 2 * min_passing) {
      task.passing = divide_up(task.passing, 2);
    } else if (task.kept > 1) {
      task.kept = divide_up(task.kept, 2);
    } else if (task.passing > std::max<int64_t>(1, 64 / width)) {
      task.passing = divide_up(task.passing, 2);
    } else {
      break;
    }
  }
  const int64_t passing_tasks = divide_up(block.passing, task.passing);
  return {divide_up(block.passing, passing_tasks), even_panels(block.kept, task.kept, passing_tasks)};
}

}  // namespace

bool reads_in_place(const MatmulKernel& kernel, const Product& p) {
  return kernel.rows_in_place > 0 && p.a.k_is_contiguous && p.m % kernel.rows_in_place == 0 &&
         p.k % kernel.step_k == 0 &&
         p.a.stride * static_cast<int64_t>(base::dtype_bytes(p.a.dtype)) % kLineBytes == 0 &&
         reinterpret_cast<uintptr_t>(p.a.data) % kLineBytes == 0;
}

bool reads_narrow(const MatmulKernel& kernel, const Product& p) {
  return p.packed_b.is_narrow && p.m <= kernel.narrow_rows;
}

bool is_better_turned(const MatmulKernel& kernel, const Product& p) {
  constexpr int64_t kLongK = 1024;  // shorter, and turning c costs more than it saves
  return kernel.transpose && is_plain(p) && !p.a.k_is_contiguous && !p.b.k_is_contiguous && !p.packed_b.data &&
         !p.pieces && p.m > p.n && p.k >= kLongK;
}

Blocking choose_blocking(const MatmulKernel& kernel, const Product& p, bool sums_in_c) {
  Blocking cut;
  cut.units = choose_units(kernel, p);
  cut.keeps_rows = keeps_rows(kernel, p);
  const int64_t passing_width = cut.keeps_rows ? kernel.columns : kernel.rows,
                kept_width = cut.keeps_rows ? kernel.rows : kernel.columns;
  const int64_t row_panels = divide_up(p.m, kernel.rows), column_panels = divide_up(p.n, kernel.columns);
  const int64_t max_packed = std::max<int64_t>(1, kMaxPackedUnits / (cut.units * passing_width));
  int64_t max_row_panels = cut.keeps_rows || reads_in_place(kernel, p) ? row_panels : max_packed;
  int64_t max_column_panels = cut.keeps_rows ? max_packed : column_panels;
  const bool needs_partials = panel_units(kernel, p.k) > cut.units && !sums_in_c;
  if (needs_partials) {
    // Every block of rows has b packed anew.
    const int64_t most_rows = std::clamp<int64_t>(kMaxPartialSums / round_up(p.n, kernel.columns), 1024, 4096);
    max_row_panels = std::min(max_row_panels, divide_up(most_rows, kernel.rows));
    const int64_t rows = std::min(row_panels, max_row_panels) * kernel.rows;
    max_column_panels = std::min(max_column_panels, std::max<int64_t>(1, kMaxPartialSums / (rows * kernel.columns)));
  }
  // Blocks of equal size rather than full ones and a remainder.
  cut.rows = divide_up(row_panels, divide_up(row_panels, max_row_panels)) * kernel.rows;
  cut.columns = divide_up(column_panels, divide_up(column_panels, max_column_panels)) * kernel.columns;

  const int64_t rows = cut.rows / kernel.rows, columns = cut.columns / kernel.columns;
  const Panels block = cut.keeps_rows ? Panels{columns, rows} : Panels{rows, columns};
  const int64_t fitting = std::max<int64_t>(1, l2_bytes() / 2 / (cut.units * kept_width * kUnitBytes));
  const bool takes_few = kernel.slice_units > 0 && block.passing > 1;
  const int64_t few = cut.keeps_rows ? 3 : divide_up(144, kernel.columns);
  const Panels task =
      takes_few ? choose_few_tasks(block, passing_width, fitting) : choose_tasks(block, passing_width, fitting, few);
  cut.task_rows = (cut.keeps_rows ? task.kept : task.passing) * kernel.rows;
  cut.task_panels = cut.keeps_rows ? task.passing : task.kept;
  return cut;
}

}  // namespace sinter::kernels::cpu
