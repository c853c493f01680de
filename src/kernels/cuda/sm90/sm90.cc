// Which products and attention our kernels for Hopper take. Built with the files *_sm90.cu, or sm90_absent.cc instead
// of all of them.
#include "kernels/cuda/sm90/sm90.h"

#include "kernels/cuda/cuda_kernels.h"

namespace sinter::kernels::cuda {
namespace {

bool is_hopper(const Stream& stream) { return compute_capability(stream.device) == 90; }

// Fewer are of generation: a choice would be measured for every number of rows.
constexpr int64_t kTrainingRows = 4096;

bool is_bf16(const Tensor& t) { return t.dtype() == base::DType::bf16; }
// The copy engine's: addresses in multiples of 16 bytes.
bool is_aligned(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.raw()) % 16 == 0; }

// A plain product in bf16, with or without a bias, of at least so many rows. b has so many columns for each of c's.
bool is_plain_product(const MatmulArgs& p, int64_t fewest_rows, int64_t columns = 1) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (!is_ordinary(p)) return false;
  if (p.transpose_a || p.accumulate || p.alpha != 1.0f || p.addend || p.batch != 1 || p.group_offsets) return false;
  if (!is_bf16(p.a) || !is_bf16(p.b.data) || !is_bf16(p.c) || (p.bias && !is_bf16(p.bias))) return false;
  if (!is_aligned(p.a) || !is_aligned(p.b.data) || !is_aligned(p.c) || (p.bias && !is_aligned(p.bias))) return false;
  const int64_t m = p.c.rows();
  if (m < fewest_rows || m > kMost) return false;
  const int64_t n = p.c.num_elements() / m, k = p.a.num_elements() / m;
  return n % 8 == 0 && k % 8 == 0 && k > 0 && p.b.data.num_elements() == columns * n * k;
}

}  // namespace

bool sm90_takes(const Stream& stream, const FusedMatmulArgs& args) {
  constexpr int64_t kTileRows = 128;
  const MatmulArgs& p = args.product;
  const Tensor &result = args.slope ? args.slope : args.pre_activation,
               &input = args.slope_input ? args.slope_input : args.activation_input;
  const bool is_forward = static_cast<bool>(result);
  if (is_forward == static_cast<bool>(input) || args.a_sums) return false;
  const auto taken = args.gated ? spec::Activation::silu : spec::Activation::gelu_tanh;
  if (args.activation != taken || p.transpose_b != is_forward || (p.bias && !is_forward)) return false;
  const Tensor& other = is_forward ? result : input;
  if (!is_bf16(other) || !is_aligned(other) || other.raw() == p.c.raw()) return false;
  if (args.gated) {
    constexpr int64_t kHalfTile = 64;  // gate's columns of a tile, beside as many of up
    if (p.bias || args.c_sums || (is_forward && p.c.size(-1) % kHalfTile != 0)) return false;
    if (!is_forward && (!is_bf16(args.gate_up_gradient) || !is_aligned(args.gate_up_gradient))) return false;
  }
  return is_plain_product(p, kTileRows, args.gated && is_forward ? 2 : 1) && is_hopper(stream);
}

bool sm90_takes_rope(const Stream& stream, const RotatedMatmulArgs& args) {
  const RopeArgs& rope = args.rope;
  if ((rope.head_dim != 64 && rope.head_dim != 128) || rope.inverse || !is_aligned(rope.cos_sin)) return false;
  return args.product.transpose_b && is_plain_product(args.product, kTrainingRows) && is_hopper(stream);
}

bool sm90_takes_bias(const Stream& stream, const MatmulArgs& args) {
  return args.bias && args.transpose_b && is_plain_product(args, kTrainingRows) && is_hopper(stream);
}

bool sm90_takes_softmax(const Stream& stream, const LinearCrossEntropyArgs& args) {
  constexpr int64_t kTileRows = 128, kMost = int64_t{1} << 30;
  const Tensor& weight = args.weight.data;
  if (!args.weight.is_plain() || weight.size(0) > kMost) return false;
  if (args.logits.rows() < kTileRows || args.x.rows() < kTileRows || args.x.rows() > kMost) return false;
  if (args.x.size(-1) % 8 != 0 || weight.size(0) % 8 != 0 || weight.size(-1) != args.x.size(-1)) return false;
  if (args.dweight && args.dweight.dtype() != base::DType::f32) return false;
  for (const Tensor* t : {&args.x, &weight, &args.logits, &args.dx}) {
    if (*t && (!is_bf16(*t) || !is_aligned(*t))) return false;
  }
  return is_hopper(stream);
}

bool sm90_takes_attention(const Stream& stream, const AttentionShape& shape, const RaggedBatch& batch,
                          std::initializer_list<const Tensor*> tensors) {
  const Tensor& qkv = **tensors.begin();
  constexpr int64_t kHeadDim = 64, kMost = int64_t{1} << 30;
  const bool sees_all = shape.window == 0 || shape.window >= batch.max_query;
  if (!options().sm90_attention || shape.head_dim != kHeadDim || !(shape.scale > 0)) return false;
  if (!batch.equal_lengths || batch.num_sequences == 0 || !sees_all || shape.dropout != 0) return false;
  if (qkv.size(0) == 0 || qkv.size(0) != batch.num_sequences * batch.max_query || qkv.size(0) > kMost) return false;
  // Numbers of queries over all heads, each head's rounded up to blocks of 128, are ints.
  if (batch.num_sequences * shape.num_heads * (batch.max_query + 127) > kMost) return false;
  // A grid's second and third dimension.
  if (batch.num_sequences > 65535 || shape.num_heads > 65535) return false;
  for (const Tensor* t : tensors) {
    if (!is_bf16(*t) || !is_aligned(*t)) return false;
  }
  if (!is_hopper(stream)) return false;
  return most_shared_bytes(stream.device) >= size_t{227} << 10;  // Hopper has it, unless told to do with less
}

bool sm90_takes_groups(const Stream& stream, const MatmulArgs& args) {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (!options().grouped || !args.group_offsets || args.bias || args.addend || args.batch != 1) return false;
  if (!is_bf16(args.a) || !is_bf16(args.b.data) || !is_aligned(args.a) || !is_aligned(args.b.data)) return false;
  if (!is_aligned(args.c) || args.a.num_elements() == 0 || args.c.num_elements() == 0) return false;
  const bool takes_format =
      args.transpose_a ? args.c.dtype() == base::DType::f32 && !args.transpose_b : is_bf16(args.c) && !args.accumulate;
  const int64_t n = args.c.size(-1), k = args.a.size(-1), rows = args.a.rows();
  if (!takes_format || n % 8 != 0 || k % 8 != 0 || n > kMost || k > kMost || rows > kMost) return false;
  if (args.group_offsets.num_elements() < 2 || args.group_offsets.num_elements() > 65536) return false;
  return is_hopper(stream);
}

}  // namespace sinter::kernels::cuda
