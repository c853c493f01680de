// The CUDA kernel table, the backend's switches and the memory it keeps.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "core/cuda/check.h"
#include "core/graph.h"
#include "kernels/batch_invariance.h"
#include "kernels/choices.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/profile.h"
#include "kernels/cuda/serving_options.h"
#include "kernels/cuda/sm90/sm90.h"
#include "kernels/fused.h"

namespace sinter::kernels {
namespace cuda {
namespace {

bool read_switch(const char* name, bool otherwise) {
  const char* text = std::getenv(name);
  if (!text || !*text) return otherwise;
  std::string value = text;
  SINTER_CHECK(value == "0" || value == "1", "{} is '{}'; expected 0 or 1", name, value);
  return value == "1";
}

size_t read_number(const char* name, size_t otherwise) {
  const char* text = std::getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const size_t value = std::strtoull(text, &end, 10);
  SINTER_CHECK(*end == 0 && *text != '-', "{} is '{}'; expected a whole number", name, text);
  return value;
}

PageAttention read_pages() {
  const char* text = std::getenv("SINTER_CUDA_PAGES");
  if (!text || !*text) return PageAttention::gathered;
  const std::string value = text;
  SINTER_CHECK(value == "0" || value == "1" || value == "2", "SINTER_CUDA_PAGES is '{}'; expected 0, 1 or 2", value);
  return static_cast<PageAttention>(value[0] - '0');
}

struct Block {
  void* data = nullptr;
  size_t bytes = 0;
};

}  // namespace

// Kernels that sum in another order for other batches.
static std::atomic<bool> batch_invariant{false};
static void apply_batch_invariance(CudaOptions& o) {
  batch_invariant = true;
  o.small_products = o.decode_attention = false;  // of few rows, of few queries
  o.cudnn = o.sm90_attention = false;             // of training alone
  o.grouped = false;                              // tiles by measure
  o.fuse = Fuse::none;
}

static CudaOptions& mutable_options() {
  static CudaOptions options = [] {
    CudaOptions o;
    o.tf32 = read_switch("SINTER_TF32", o.tf32);
    o.deterministic = read_switch("SINTER_DETERMINISTIC", o.deterministic);
    // Timings differ from run to run, and with them the algorithm and the last bits.
    o.tune = read_switch("SINTER_CUDA_TUNE", !o.deterministic);
    o.overlap = read_switch("SINTER_CUDA_OVERLAP", o.overlap);
    o.small_products = read_switch("SINTER_CUDA_SMALL", o.small_products);
    o.decode_attention = read_switch("SINTER_CUDA_DECODE", o.decode_attention);
    o.cudnn = read_switch("SINTER_CUDNN", o.cudnn);
    o.sm90_attention = read_switch("SINTER_SM90_ATTENTION", o.sm90_attention);
    o.shared_bytes = read_number("SINTER_CUDA_SHARED", o.shared_bytes);
    o.grouped = read_switch("SINTER_CUDA_GROUPED", o.grouped);
    if (read_switch("SINTER_CUDA_FUSE", false)) {
      o.fuse = Fuse::all;
    } else if (!read_switch("SINTER_CUDA_FUSE", true)) {
      o.fuse = Fuse::none;
    }
    if (read_switch("SINTER_BATCH_INVARIANT", false)) apply_batch_invariance(o);
    return o;
  }();
  return options;
}
const CudaOptions& options() { return mutable_options(); }

// Batch-invariant mode leaves these out by itself: cuDNN is off, and so is what asks is_batch_invariant().
const ServingOptions& serving_options() {
  static const ServingOptions options = [] {
    ServingOptions o;
    o.pages = read_pages();
    o.fp8_rows = static_cast<int64_t>(read_number("SINTER_CUDA_FP8_ROWS", static_cast<size_t>(o.fp8_rows)));
    o.prefetched_bytes = read_number("SINTER_CUDA_PREFETCH", o.prefetched_bytes >> 20) << 20;
    return o;
  }();
  return options;
}

static thread_local int t_without_measuring = 0;
bool is_measuring_off() { return t_without_measuring > 0; }
static thread_local int t_brief_measuring = 0;
bool is_measuring_brief() { return t_brief_measuring > 0; }

void* scratch(Stream& stream, Scratch slot, size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<void*, int>, Block> blocks;
  std::lock_guard lock(mutex);
  Block& block = blocks[{stream.native, static_cast<int>(slot)}];
  if (block.bytes < bytes) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    SINTER_CUDA_CHECK(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.native), &capture));
    SINTER_CHECK(capture == cudaStreamCaptureStatusNone,
                 "[cuda] scratch memory must grow to {} bytes inside a graph capture; run the step once before", bytes);
    core::Allocator& allocator = core::runtime(stream.device).allocator();
    // cudaFree waits for work that still uses the block; graphs will use it again, so theirs stay.
    const bool may_be_in_graphs = slot != kPageScratch && core::has_captured();
    if (block.data && !may_be_in_graphs) allocator.release(block.data, block.bytes);
    block = {};
    size_t rounded = (bytes + (size_t{1} << 20) - 1) >> 20 << 20;
    block.data = allocator.allocate(rounded);
    block.bytes = rounded;
  }
  return block.data;
}

void* zeroed_scratch(Stream& stream, size_t bytes) {
  constexpr size_t kRoomBytes = size_t{1} << 20;  // as much as anyone has needed: it does not grow later
  static std::mutex mutex;
  static std::map<void*, std::pair<void*, size_t>> cleared;
  bytes = std::max(bytes, kRoomBytes);
  void* data = scratch(stream, Scratch::zeros, bytes);
  std::lock_guard lock(mutex);
  std::pair<void*, size_t>& known = cleared[stream.native];
  if (known.first != data || known.second < bytes) {
    SINTER_CUDA_CHECK(cudaMemsetAsync(data, 0, bytes, static_cast<cudaStream_t>(stream.native)));
    known = {data, bytes};
  }
  return data;
}

int num_multiprocessors(const Stream& stream) {
  static std::mutex mutex;
  static std::map<int, int> counts;
  std::lock_guard lock(mutex);
  int& count = counts[stream.device.index];
  if (count == 0) {
    SINTER_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, stream.device.index));
  }
  return count;
}

int compute_capability(core::Device device) {
  static std::mutex mutex;
  static std::map<int, int> known;
  std::lock_guard lock(mutex);
  int& capability = known[device.index];
  if (capability == 0) {
    int major = 0, minor = 0;
    SINTER_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
    SINTER_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device.index));
    capability = 10 * major + minor;
  }
  return capability;
}

size_t most_shared_bytes(core::Device device) {
  int bytes = 0;
  SINTER_CUDA_CHECK(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device.index));
  const size_t most = static_cast<size_t>(bytes);
  return options().shared_bytes > 0 ? std::min(most, options().shared_bytes) : most;
}

static std::atomic<int64_t> sm90_attention_calls{0};
int64_t num_sm90_attention_calls() { return sm90_attention_calls; }

static bool sm90_takes_backward(Stream& stream, const AttentionBackwardArgs& args) {
  return !options().deterministic &&
         sm90_takes_attention(stream, args.shape, *args.batch, {&args.qkv, &args.out, &args.dout, &args.dqkv});
}
static void run_sm90_backward(Stream& stream, const AttentionBackwardArgs& args, const Tensor& cos_sin) {
  ++sm90_attention_calls;
  sm90_attention_backward(stream, args, cos_sin);
}

// Whether prompts that begin in this batch go past the cache: their keys are the batch's own, which training's kernels
// read in place. cuDNN's have a graph for every length, which takes up to a second to make: lengths that are common.
static bool is_fresh(const AttentionForwardArgs& args) {
  static const bool is_on = read_switch("SINTER_CUDA_FRESH", true);
  constexpr int64_t kLeastTokens = 256;
  const RaggedBatch& b = *args.batch;
  if (!is_on || is_batch_invariant() || !args.cache || !b.equal_lengths || b.max_query < kLeastTokens) return false;
  if (args.cache.keys.dtype() != args.qkv.dtype()) return false;  // what was written is not what is read back
  return static_cast<int64_t>(b.host_contexts.size()) == b.num_sequences &&
         std::all_of(b.host_contexts.begin(), b.host_contexts.end(), [&](int32_t c) { return c == b.max_query; });
}

void attention_forward(Stream& stream, const AttentionForwardArgs& args) {
  constexpr int64_t kCommonTokens = 2048;  // steps are multiples of it, and so are the chunks that fill one
  AttentionForwardArgs own = args;
  if (is_fresh(args)) own.cache = {}, own.block_tables = {};
  if (!own.cache && sm90_takes_attention(stream, args.shape, *args.batch, {&args.qkv, &args.out})) {
    ++sm90_attention_calls;
    return sm90_attention_forward(stream, own);
  }
  const bool has_new_graph = args.cache && args.batch->max_query % kCommonTokens != 0;
  if (!has_new_graph && cudnn_attention_forward(stream, own)) return;
  flash_forward(stream, args);
}

void attention_backward(Stream& stream, const AttentionBackwardArgs& args) {
  if (sm90_takes_backward(stream, args)) return run_sm90_backward(stream, args, {});
  if (!cudnn_attention_backward(stream, args)) flash_backward(stream, args);
}

bool rotated_attention_backward(Stream& stream, const RotatedAttentionBackwardArgs& args) {
  if (!sm90_takes_backward(stream, args.attention)) return false;
  run_sm90_backward(stream, args.attention, args.cos_sin);
  return true;
}

// Choices stay measured: a run keeps them in its checkpoint (choices.h).
void set_deterministic() { mutable_options().deterministic = true; }
bool is_batch_invariant() {
  options();  // reads the environment
  return batch_invariant;
}

void limit_measuring(MeasuringLimit limit, int change) {
  (limit == MeasuringLimit::none ? t_without_measuring : t_brief_measuring) += change;
}

const KernelTable* make_table() {
  static const KernelTable own = [] {
    KernelTable t;
    t.name = "cuda";
#define SINTER_ENTRY(name, Args, cpu, cuda) t.name = cuda::name;
    SINTER_KERNELS(SINTER_ENTRY)
    SINTER_FUSED_KERNELS(SINTER_ENTRY)
#undef SINTER_ENTRY
    return complete_table(t);
  }();
  return traced_table(&own);
}

}  // namespace cuda

void set_cuda_batch_invariant() { cuda::apply_batch_invariance(cuda::mutable_options()); }

}  // namespace sinter::kernels
