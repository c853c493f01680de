// Which kernel takes attention: documents of training batches take cuDNN, equal lengths with heads of 64 in bf16 on
// Hopper our own for it. And a pass over documents that is captured.
#include "kernels/cases/attention.h"

#include "core/graph.h"
#include "kernels/cuda/attention/attention_cases.h"
#include "kernels/cuda/attention/cudnn_attention.h"
#include "kernels/cuda/attention/page_attention.h"
#include "kernels/cuda/serving_options.h"

namespace sinter::kernels::cuda {
namespace {

using base::DType;
using base::Shape;
using cases::Attention;
using cases::Case;
using cases::Result;

int64_t ragged_before = 0, sm90_before = 0, pieces_before = 0;

void begin_watch() {
  ragged_before = num_ragged_cudnn_calls(), sm90_before = num_sm90_attention_calls();
  pieces_before = num_piece_calls();
}

// Documents of training batches must have taken cuDNN: a call to either direction; f32, grouped heads and deterministic
// runs aside.
void expect_cudnn(Case& c, DType t, const Attention& a, int64_t calls) {
  if (!a.is_training || ragged_before < 0) return;
  const bool is_grouped = a.kv_heads < a.heads;
  const bool takes = t != DType::f32 && !is_grouped && options().cudnn && !options().deterministic;
  c.expect_true(num_ragged_cudnn_calls() - ragged_before == (takes ? calls : 0), takes ? "by cuDNN" : "by our own");
}

// Equal lengths with heads of 64 in bf16 must have taken our kernels for Hopper where there is one.
void expect_sm90(Case& c, DType t, const Attention& a, int64_t calls) {
  const bool is_hopper = compute_capability({core::DeviceKind::cuda, 0}) == 90;
  if (!a.equal_lengths || !is_hopper || !options().sm90_attention || options().shared_bytes > 0) return;
  if (options().deterministic) return;  // forward alone
  const bool takes = t == DType::bf16 && a.dim == 64;
  c.expect_true(num_sm90_attention_calls() - sm90_before == (takes ? calls : 0), takes ? "by ours" : "by others");
}

// Long chunks over pages must have taken cuDNN on Hopper.
void expect_pieces(Case& c, int64_t most_queries) {
  const bool is_hopper = compute_capability({core::DeviceKind::cuda, 0}) >= 90;
  if (pieces_before < 0 || !is_hopper || !options().cudnn || serving_options().pages == PageAttention::none) return;
  const bool takes = most_queries >= kLeastPieceQueries;
  if (takes && serving_options().pages == PageAttention::direct) return;  // not of every format
  c.expect_true((num_piece_calls() > pieces_before) == takes, takes ? "in pieces by cuDNN" : "by our own");
}

void expect_kernel(Case& c, DType t, const Attention& a, int64_t calls) {
  expect_cudnn(c, t, a, calls);
  expect_sm90(c, t, a, calls);
}

// A pass over documents is captured with those of one batch and replayed with those of others.
void captured(Case& c, DType t) {
  const std::vector<std::vector<int32_t>> batches = {{300, 1, 77, 129, 200}, {1, 706, 0, 0, 0}, {60, 347, 300, 0, 0}};
  const Attention a{.lengths = batches[0], .heads = 8, .kv_heads = 2, .dim = 64, .is_training = true};
  c.bits_may_differ();
  cases::BatchHandles batch = cases::add_batch(c, a, a.lengths);
  batch.max_query = batch.tokens;
  const Shape rows{batch.tokens, a.heads * a.dim};
  std::vector<int> offsets, outs, gradients;
  for (const std::vector<int32_t>& lengths : batches) {
    std::vector<int32_t> from = {0};
    for (int32_t length : lengths) from.push_back(from.back() + length);
    offsets.push_back(c.integers({static_cast<int64_t>(from.size())}, from));
    outs.push_back(c.output(rows, t));
    gradients.push_back(c.output({batch.tokens, a.width()}, t));
  }
  const int qkv = c.random({batch.tokens, a.width()}, t), dout = c.random(rows, t), out = c.output(rows, t),
            dqkv = c.output({batch.tokens, a.width()}, t), lse = c.output({a.heads, batch.tokens}, DType::f32),
            delta = c.output({a.heads, batch.tokens}, DType::f32);
  int64_t replays = 0;
  begin_watch();
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    const RaggedBatch b = cases::make_batch(a, batch, at);
    AttentionForwardArgs forward;
    forward.shape = a.shape(), forward.batch = &b, forward.qkv = at(qkv), forward.out = at(out), forward.lse = at(lse);
    AttentionBackwardArgs args;
    args.shape = a.shape(), args.batch = &b, args.qkv = at(qkv), args.out = at(out), args.lse = at(lse);
    args.dout = at(dout), args.delta = at(delta), args.dqkv = at(dqkv);
    core::DeviceRuntime& device = core::runtime(s.device);
    auto copy = [&](const Tensor& from, const Tensor& to) {
      device.copy_within(to.raw(), from.raw(), from.bytes(), s);
    };
    core::RepeatedWork pass;
    for (size_t i = 0; i < batches.size(); ++i) {
      copy(at(offsets[i]), b.offsets);
      pass.run(s, [&] {
        table.attention_forward(s, forward);
        table.attention_backward(s, args);
      });
      copy(at(out), at(outs[i]));
      copy(at(dqkv), at(gradients[i]));
    }
    device.synchronize(s);
    replays = pass.num_replays();
  });
  for (size_t i = 0; i < batches.size(); ++i) {
    c.expect_close(outs[i], fmt::format("out {}", i).c_str(), Result::attention);
    c.expect_close(gradients[i], fmt::format("dqkv {}", i).c_str(), Result::attention_gradient);
  }
  c.expect_true(replays == 2, "2 replays");
  expect_cudnn(c, t, a, 4);  // called as they are, then captured
}

}  // namespace

void register_attention_cases() {
  cases::attention_witness() = {.begin = begin_watch, .expect = expect_kernel, .expect_pages = expect_pieces};
  for (DType t : {DType::bf16, DType::f16}) {
    cases::add_claim("CapturedAttention",
                     fmt::format("{}_ReplaysOverOtherDocumentsEqualTheReference", base::dtype_name(t)),
                     cases::Size::small, [=](Case& c) { captured(c, t); });
  }
}

}  // namespace sinter::kernels::cuda
