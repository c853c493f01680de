#include "kernels/cuda/emulator/emulator.h"

#include <setjmp.h>
#include <ucontext.h>

#include <memory>

namespace emulator {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10;

// A thread of a block. It is entered the first time by its context, and later by a jump, which costs no system call.
struct Fiber {
  std::unique_ptr<char[]> stack;
  ucontext_t start;
  jmp_buf here;
  bool has_begun = false, has_ended = false;
  Wait waits = Wait::none;
  Slot slot;
};

Fiber fibers[kMostThreads];
int running;
ucontext_t scheduler_start;
jmp_buf scheduler;
const std::function<void()>* work;

void run_fiber() {
  (*work)();
  fibers[running].has_ended = true;
  _longjmp(scheduler, 1);
}

// Lets a fiber run up to its next wait.
void resume(int number) {
  Fiber& fiber = fibers[number];
  running = number;
  const auto n = static_cast<unsigned>(number);
  threadIdx = {n % blockDim.x, n / blockDim.x % blockDim.y, n / blockDim.x / blockDim.y};
  if (_setjmp(scheduler) != 0) return;
  if (fiber.has_begun) _longjmp(fiber.here, 1);
  fiber.has_begun = true;
  swapcontext(&scheduler_start, &fiber.start);
}

void prepare(int number) {
  Fiber& fiber = fibers[number];
  if (!fiber.stack) fiber.stack = std::make_unique<char[]>(kStackBytes);
  fiber.has_begun = fiber.has_ended = false;
  fiber.waits = Wait::none;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.get();
  fiber.start.uc_stack.ss_size = kStackBytes;
  fiber.start.uc_link = nullptr;
  makecontext(&fiber.start, run_fiber, 0);
}

// Lets those go on that all wait for the same; false: none do.
bool release(int first, int count, Wait what) {
  bool is_any = false;
  for (int i = first; i < first + count; ++i) {
    if (fibers[i].has_ended) continue;
    if (fibers[i].waits != what) return false;
    is_any = true;
  }
  for (int i = first; is_any && i < first + count; ++i) fibers[i].waits = Wait::none;
  return is_any;
}

void run_block(int count) {
  for (int i = 0; i < count; ++i) prepare(i);
  for (;;) {
    bool is_alive = false;
    for (int first = 0; first < count; first += kWarp) {
      const int lanes = std::min(kWarp, count - first);
      do {
        for (int i = first; i < first + lanes; ++i) {
          if (!fibers[i].has_ended && fibers[i].waits == Wait::none) resume(i);
        }
      } while (release(first, lanes, Wait::warp));
      for (int i = first; i < first + lanes; ++i) is_alive = is_alive || !fibers[i].has_ended;
    }
    if (!is_alive) return;
    if (release(0, count, Wait::block)) continue;
    std::fprintf(stderr, "emulator: threads of block %u wait at different barriers\n", blockIdx.x);
    std::abort();
  }
}

}  // namespace

void launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel) {
  const unsigned threads = block.x * block.y * block.z;
  if (threads == 0 || threads > kMostThreads || shared_bytes > kSharedBytes || grid.x == 0 || grid.y == 0 ||
      grid.y > 65535 || grid.z == 0 || grid.z > 65535) {
    std::fprintf(stderr, "emulator: a GPU refuses a grid of %u x %u x %u blocks of %u threads with %zu shared bytes\n",
                 grid.x, grid.y, grid.z, threads, shared_bytes);
    std::abort();
  }
  gridDim = grid, blockDim = block;
  work = &kernel;
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        std::memset(dynamic_shared, 0x7f, shared_bytes);
        blockIdx = {x, y, z};
        run_block(static_cast<int>(threads));
      }
    }
  }
}

void wait(Wait what) {
  Fiber& fiber = fibers[running];
  fiber.waits = what;
  if (_setjmp(fiber.here) == 0) _longjmp(scheduler, 1);
}

int thread() { return running; }

bool any_of_block(bool holds) {
  static bool is_any;
  wait(Wait::block);
  is_any = false;
  wait(Wait::block);
  is_any = is_any || holds;
  wait(Wait::block);
  return is_any;
}

Slot& slot_of(int thread) { return fibers[thread].slot; }

static unsigned char near_by;
uint32_t shared_address(const void* p) {
  const auto distance = reinterpret_cast<intptr_t>(p) - reinterpret_cast<intptr_t>(&near_by);
  return static_cast<uint32_t>(static_cast<int32_t>(distance));
}
void* shared_pointer(uint32_t address) { return &near_by + static_cast<int32_t>(address); }

void load_matrices(uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3, uint32_t row, bool transposed) {
  const int lane = thread() % kWarp, first = thread() - lane;
  std::memcpy(slot_of(thread()).bytes, &row, sizeof row);
  wait(Wait::warp);
  uint32_t* r[4] = {&r0, &r1, &r2, &r3};
  for (int i = 0; i < 4; ++i) {
    uint32_t pair[2];
    for (int e = 0; e < 2; ++e) {
      const int from = transposed ? lane % 4 * 2 + e : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + e;
      uint32_t address;
      std::memcpy(&address, slot_of(first + i * 8 + from).bytes, sizeof address);
      pair[e] = static_cast<const uint16_t*>(shared_pointer(address))[column];
    }
    *r[i] = pair[0] | pair[1] << 16;
  }
  wait(Wait::warp);
}

static void check_aligned(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % 16 == 0) return;
  std::fprintf(stderr, "emulator: 16 bytes at an address that is no multiple of 16\n");
  std::abort();
}
void copy_16(void* to, const void* from, int bytes) {
  check_aligned(to);
  check_aligned(from);
  std::memset(to, 0, 16);
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void load_16(uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, const void* from) {
  check_aligned(from);
  uint32_t words[4];
  std::memcpy(words, from, sizeof words);
  x = words[0], y = words[1], z = words[2], w = words[3];
}

}  // namespace emulator
