// Pieces of queries and gathered pages for attention of many queries over pages (page_attention.h).
#include <algorithm>

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/page_attention.h"
#include "kernels/cuda/serving_options.h"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr size_t kMostGatheredBytes = size_t{1} << 30;

__device__ __forceinline__ int pieces_of(int queries) {
  return queries < kLeastPieceQueries ? 0 : (queries + kPieceQueries - 1) / kPieceQueries;
}

// How many pieces and gathered pages the sequences before each one have.
struct PieceCounts {
  int pieces[kMostPieceSequences + 1], pages[kMostPieceSequences + 1];
};

// By the first warp of a block, for all of it.
__device__ __forceinline__ void count_pieces(const AttentionParams& p, PieceCounts& counts) {
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    int pieces_before = 0, pages_before = 0;
    for (int first = 0; first < p.num_sequences; first += 32) {
      const int s = first + lane;
      const bool is_there = s < p.num_sequences;
      int pieces = is_there ? pieces_of(p.offsets[s + 1] - p.offsets[s]) : 0;
      int pages = pieces > 0 ? (p.contexts[s] + kGatheredTokens - 1) / kGatheredTokens : 0;
#pragma unroll
      for (int step = 1; step < 32; step <<= 1) {
        const int more_pieces = __shfl_up_sync(0xffffffffu, pieces, step);
        const int more_pages = __shfl_up_sync(0xffffffffu, pages, step);
        if (lane >= step) pieces += more_pieces, pages += more_pages;
      }
      if (is_there) counts.pieces[s + 1] = pieces_before + pieces, counts.pages[s + 1] = pages_before + pages;
      pieces_before += __shfl_sync(0xffffffffu, pieces, 31);
      pages_before += __shfl_sync(0xffffffffu, pages, 31);
    }
    if (lane == 0) counts.pieces[0] = counts.pages[0] = 0;
  }
  __syncthreads();
}

// The sequence whose range of `before` (count + 1 sums) holds i.
__device__ __forceinline__ int sequence_of(const int* before, int count, int i) {
  int low = 0, high = count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    before[middle] <= i ? low = middle : high = middle - 1;
  }
  return low;
}

struct PieceQueries {
  int first, count, context;  // of the batch's rows; keys that the last one sees
};
__device__ __forceinline__ PieceQueries queries_of(const AttentionParams& p, const PieceCounts& counts, int s,
                                                   int piece) {
  const int begin = p.offsets[s], queries = p.offsets[s + 1] - begin;
  const int first = (piece - counts.pieces[s]) * kPieceQueries, count = min(kPieceQueries, queries - first);
  return {begin + first, count, p.contexts[s] - (queries - first - count)};
}

__global__ void __launch_bounds__(kThreads)
    piece_kernel(AttentionParams p, Pieces to, int num_pieces, int table_width, int page_tokens, int32_t* first_pages) {
  __shared__ PieceCounts counts;
  count_pieces(p, counts);
  const int found = min(counts.pieces[p.num_sequences], num_pieces);
  if (blockIdx.x == 0) {
    const int64_t out_width = int64_t{p.num_heads} * p.head_dim;
    for (int i = threadIdx.x; i <= num_pieces; i += kThreads) {
      PieceQueries q{p.offsets[p.num_sequences], 0, 0};
      if (i < found) q = queries_of(p, counts, sequence_of(counts.pieces, p.num_sequences, i), i);
      to.query_places[i] = q.first * p.width;
      to.output_places[i] = q.first * out_width;
      if (i < num_pieces) to.query_lengths[i] = q.count, to.key_lengths[i] = q.context;
    }
    if (first_pages) {
      for (int s = threadIdx.x; s <= p.num_sequences; s += kThreads) first_pages[s] = counts.pages[s];
    }
  }
  for (int i = blockIdx.x * kThreads + threadIdx.x; i < num_pieces * table_width; i += gridDim.x * kThreads) {
    const int piece = i / table_width, page = i % table_width;
    int entry = 0;
    if (piece < found) {
      const int s = sequence_of(counts.pieces, p.num_sequences, piece);
      if (page * page_tokens < p.contexts[s])
        entry = first_pages ? counts.pages[s] + page : p.block_tables[s * p.max_blocks + page];
    }
    to.tables[i] = entry;
  }
}

// Eight numbers of the cache at an element, in T.
template <class T>
__device__ __forceinline__ uint4 load_eight(const void* cache, int64_t at) {
  return *reinterpret_cast<const uint4*>(static_cast<const T*>(cache) + at);
}
template <class T>
__device__ __forceinline__ uint4 load_eight_codes(const void* cache, int64_t at, float scale) {
  const uint2 codes = *reinterpret_cast<const uint2*>(static_cast<const char*>(cache) + at);
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = (i < 2 ? codes.x : codes.y) >> i % 2 * 16;
    const __half2_raw both = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(pair & 0xffffu), __NV_E4M3);
    const float2 x = __half22float2(both);
    words[i] = pack<T>(scale * x.x, scale * x.y);
  }
  return {words[0], words[1], words[2], words[3]};
}

// A page at a time: (kv heads, kGatheredTokens, head size) of keys and of values, zeros behind the last token.
template <class T, bool kIsFp8>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(AttentionParams p, const int32_t* first_pages, uint4* keys, uint4* values) {
  const int chunks = p.head_dim / 8, num_pages = first_pages[p.num_sequences];
  const int per_page = p.num_kv_heads * kGatheredTokens * chunks;
  for (int page = blockIdx.x; page < num_pages; page += gridDim.x) {
    const int index = sequence_of(first_pages, p.num_sequences, page);
    const int first = (page - first_pages[index]) * kGatheredTokens, context = p.contexts[index];
    AttentionSequence s{index, 0, 0, 0, context};
#pragma unroll 2
    for (int i = threadIdx.x; i < per_page; i += kThreads) {
      const int chunk = i % chunks, row = i / chunks, token = first + row % kGatheredTokens;
      s.kv_head = row / kGatheredTokens;
      uint4 key{}, value{};
      if (token < context) {
        const int64_t at = cache_offset(p, s, token) + chunk * 8;
        if constexpr (kIsFp8) {
          key = load_eight_codes<T>(p.keys, at, p.key_scales[s.kv_head]);
          value = load_eight_codes<T>(p.values, at, p.value_scales[s.kv_head]);
        } else {
          key = load_eight<T>(p.keys, at);
          value = load_eight<T>(p.values, at);
        }
      }
      keys[int64_t{page} * per_page + i] = key;
      values[int64_t{page} * per_page + i] = value;
    }
  }
}

// The least of 3, 6, 12, 24, ... that is not below n: few graphs.
int64_t piece_bound(int64_t n) {
  int64_t bound = 3;
  while (bound < n) bound *= 2;
  return bound;
}
// The least of 4096, 16384, 65536, ...
int64_t key_bound(int64_t n) {
  int64_t bound = 4096;
  while (bound < n) bound *= 4;
  return bound;
}

// Memory of a call: arrays of pieces, then gathered pages.
struct Room {
  Pieces pieces;
  int32_t* first_pages = nullptr;
  char *keys = nullptr, *values = nullptr, *workspace = nullptr;
};

Room take_room(Stream& stream, const PieceShape& shape, int64_t sequences, size_t gathered_bytes,
               size_t workspace_bytes) {
  size_t bytes = 0;
  auto add = [&](int64_t count, size_t element) {
    const size_t at = bytes;
    bytes += (static_cast<size_t>(count) * element + 255) / 256 * 256;
    return at;
  };
  const int64_t n = shape.pieces;
  const size_t lengths[] = {add(n, 4), add(n, 4)}, places[] = {add(n + 1, 8), add(n + 1, 8)};
  const size_t tables = add(n * shape.table_width(), 4), first_pages = add(sequences + 1, 4);
  const size_t keys = add(static_cast<int64_t>(gathered_bytes), 1),
               values = add(static_cast<int64_t>(gathered_bytes), 1),
               workspace = add(static_cast<int64_t>(workspace_bytes), 1);
  // In steps: what was taken before stays taken where graphs are in use.
  size_t taken = size_t{16} << 20;
  while (taken < bytes) taken *= 2;
  char* base = static_cast<char*>(scratch(stream, kPageScratch, taken));
  Room room;
  room.pieces = {reinterpret_cast<int32_t*>(base + lengths[0]), reinterpret_cast<int32_t*>(base + lengths[1]),
                 reinterpret_cast<int64_t*>(base + places[0]), reinterpret_cast<int64_t*>(base + places[1]),
                 reinterpret_cast<int32_t*>(base + tables)};
  room.first_pages = gathered_bytes > 0 ? reinterpret_cast<int32_t*>(base + first_pages) : nullptr;
  room.keys = base + keys, room.values = base + values, room.workspace = base + workspace;
  return room;
}

// Pages that gathering takes at most.
int64_t num_gathered_pages(const RaggedBatch& batch) {
  int64_t pages = 0;
  for (const int32_t context : batch.host_contexts) pages += div_up(context, kGatheredTokens);
  return pages;
}

bool applies(const AttentionForwardArgs& args, const AttentionParams& p) {
  const RaggedBatch& batch = *args.batch;
  if (serving_options().pages == PageAttention::none || !p.keys || !p.vector || p.dropout > 0 || p.lse) return false;
  if (args.qkv.dtype() != base::DType::bf16 && args.qkv.dtype() != base::DType::f16) return false;
  if (batch.max_query < kLeastPieceQueries || batch.num_sequences > kMostPieceSequences) return false;
  return args.shape.head_dim % 8 == 0 && static_cast<int64_t>(batch.host_contexts.size()) == batch.num_sequences;
}

}  // namespace

bool page_attention(Stream& stream, const AttentionForwardArgs& args, const AttentionParams& p) {
  if (!applies(args, p)) return false;
  const RaggedBatch& batch = *args.batch;
  const int64_t most_long = std::min<int64_t>(batch.num_sequences, p.tokens / kLeastPieceQueries);
  const int64_t page_elements = int64_t{p.num_kv_heads} * kGatheredTokens * p.head_dim;
  const int64_t pages = num_gathered_pages(batch);
  const auto gathered_bytes = static_cast<size_t>(pages * page_elements) * sizeof(uint16_t);
  const bool gathers = serving_options().pages == PageAttention::gathered && gathered_bytes <= kMostGatheredBytes / 2;
  if (p.is_int8 || (!gathers && p.key_scales)) return false;
  PieceShape shape{.pieces = piece_bound(p.tokens / kPieceQueries + most_long),
                   .keys = key_bound(batch.max_context),
                   .heads = p.num_heads,
                   .kv_heads = p.num_kv_heads,
                   .dim = p.head_dim,
                   .row_width = p.width,
                   .window = p.window,
                   .page_tokens = p.block_size,
                   .page_stride = p.block_stride,
                   .head_stride = p.head_stride,
                   .token_stride = p.token_stride,
                   .dtype = args.qkv.dtype(),
                   .scale = p.scale};
  if (gathers) {
    shape.page_tokens = kGatheredTokens, shape.page_stride = page_elements;
    shape.head_stride = int64_t{kGatheredTokens} * p.head_dim, shape.token_stride = p.head_dim;
  }
  size_t workspace_bytes = 0;
  if (!find_piece_kernel(stream, shape, workspace_bytes)) return false;
  const Room room = take_room(stream, shape, batch.num_sequences, gathers ? gathered_bytes : 0, workspace_bytes);
  const auto table_width = static_cast<int>(shape.table_width()), num_pieces = static_cast<int>(shape.pieces);
  const unsigned blocks = grid_for(stream, int64_t{num_pieces} * table_width, 4 * kThreads, 1);
  piece_kernel<<<blocks, kThreads, 0, native(stream)>>>(p, room.pieces, num_pieces, table_width,
                                                        static_cast<int>(shape.page_tokens), room.first_pages);
  SINTER_CUDA_LAUNCHED();
  PieceCall call{shape, room.pieces, args.qkv.raw(), p.keys, p.values, p.out, room.workspace};
  if (gathers) {
    auto *keys = reinterpret_cast<uint4*>(room.keys), *values = reinterpret_cast<uint4*>(room.values);
    const unsigned grid = grid_for(stream, pages, 1, 8);
    auto gather = [&](auto kernel) {
      kernel<<<grid, kThreads, 0, native(stream)>>>(p, room.first_pages, keys, values);
      SINTER_CUDA_LAUNCHED();
    };
    if (args.qkv.dtype() == base::DType::bf16) {
      p.key_scales ? gather(gather_kernel<bfloat16, true>) : gather(gather_kernel<bfloat16, false>);
    } else {
      p.key_scales ? gather(gather_kernel<half, true>) : gather(gather_kernel<half, false>);
    }
    call.keys = keys, call.values = values;
  }
  piece_attention(stream, call);
  return true;
}

}  // namespace sinter::kernels::cuda
