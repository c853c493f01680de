#include "parallel/expert.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "base/error.h"

namespace sinter::parallel {
namespace {

using core::DType;

// Gives every round the memory of the first one.
class RoundMemory : public core::Allocator {
 public:
  explicit RoundMemory(core::Allocator& backing) : backing_(backing) {}
  ~RoundMemory() override {
    for (const Place& place : places_) backing_.release(place.data, place.bytes);
  }
  core::Device device() const override { return backing_.device(); }
  void begin_round() { next_ = 0; }
  void* allocate(size_t bytes) override {
    if (next_ == places_.size()) places_.push_back({backing_.allocate(bytes), bytes});
    const Place& place = places_[next_++];
    SINTER_CHECK(place.bytes == bytes, "[experts] a round asks for {} bytes, the first one for {}", bytes, place.bytes);
    return place.data;
  }
  void release(void*, size_t) override {}

 private:
  struct Place {
    void* data;
    size_t bytes;
  };
  core::Allocator& backing_;
  std::vector<Place> places_;
  size_t next_ = 0;
};

}  // namespace

// Which rows go where in a call, the same in forward and backward.
struct ExpertAxis::Exchange {
  comm::Communicator& group;
  int64_t P, rank, experts, cap;  // experts of a rank; rows from one rank to another in a round
  bool is_planned;                // without data
  std::vector<int64_t> counts;    // (P, P experts): rows from a rank for an expert
  int64_t rounds = 1;

  Exchange(comm::Communicator& g, int64_t num_experts, double capacity, int64_t num_rows, const Tensor& group_offsets)
      : group(g),
        P(g.size()),
        rank(g.rank()),
        experts(num_experts / P),
        cap(std::max<int64_t>(
            1, std::min(num_rows, static_cast<int64_t>(
                                      std::ceil(capacity * static_cast<double>(num_rows) / static_cast<double>(P)))))),
        is_planned(group_offsets.device().kind == core::DeviceKind::shapes) {
    counts.resize(static_cast<size_t>(P * num_experts));
    if (is_planned) return;
    const std::vector<int32_t> offsets = core::to_host<int32_t>(group_offsets);
    std::vector<int64_t> own;
    for (size_t e = 0; e + 1 < offsets.size(); ++e) own.push_back(offsets[e + 1] - offsets[e]);
    group.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(counts)));
    for (int64_t s = 0; s < P; ++s) {
      for (int64_t d = 0; d < P; ++d) rounds = std::max(rounds, (rows_between(s, d) + cap - 1) / cap);
    }
  }
  int64_t count(int64_t from, int64_t expert) const { return counts[static_cast<size_t>(from * P * experts + expert)]; }
  int64_t rows_between(int64_t from, int64_t to) const {
    int64_t rows = 0;
    for (int64_t e = 0; e < experts; ++e) rows += count(from, to * experts + e);
    return rows;
  }
  // Of one round: what goes from here to each rank, and comes from each.
  struct Round {
    std::vector<int64_t> send, receive, first;               // first: of my rows for each rank
    std::vector<int32_t> offsets, row_of_slot, slot_of_row;  // of what came, sorted by expert
  };
  Round round(int64_t r) const {
    Round out;
    int64_t begin = 0;
    std::vector<int64_t> expert_of;
    for (int64_t p = 0; p < P; ++p) {
      auto share = [&](int64_t rows) { return std::clamp<int64_t>(rows - r * cap, 0, cap); };
      const int64_t to = rows_between(rank, p);
      out.send.push_back(share(to));
      out.first.push_back(begin + std::min(to, r * cap));
      begin += to;
      out.receive.push_back(share(rows_between(p, rank)));
      int64_t at = -r * cap;  // place among that rank's rows of this round
      for (int64_t e = 0; e < experts; ++e) {
        for (int64_t i = 0; i < count(p, rank * experts + e); ++i, ++at) {
          if (at >= 0 && at < cap) expert_of.push_back(e);
        }
      }
    }
    const size_t R = expert_of.size();
    out.offsets.assign(static_cast<size_t>(experts + 1), 0);
    for (int64_t e : expert_of) ++out.offsets[static_cast<size_t>(e + 1)];
    for (int64_t e = 0; e < experts; ++e)
      out.offsets[static_cast<size_t>(e + 1)] += out.offsets[static_cast<size_t>(e)];
    std::vector<int32_t> next(out.offsets.begin(), out.offsets.end() - 1);
    out.row_of_slot.assign(static_cast<size_t>(P * cap), 0);
    out.slot_of_row.assign(static_cast<size_t>(P * cap), 0);
    for (size_t slot = 0; slot < R; ++slot) {
      const int32_t row = next[static_cast<size_t>(expert_of[slot])]++;
      out.row_of_slot[slot] = row;
      out.slot_of_row[static_cast<size_t>(row)] = static_cast<int32_t>(slot);
    }
    // Rows without a sender map onto themselves: they are computed and never read.
    for (size_t i = R; i < out.row_of_slot.size(); ++i)
      out.row_of_slot[i] = out.slot_of_row[i] = static_cast<int32_t>(i);
    return out;
  }
};

namespace {

// The memory and the moves of a round.
struct Moves {
  Context context;
  int64_t slots, C, experts;
  Tensor offsets, row_of_slot, slot_of_row;

  void copy(const Tensor& to, const std::vector<int32_t>& from) const {
    core::DeviceRuntime& device = core::runtime(to.device());
    device.copy_to_device(to.raw(), from.data(), to.bytes(), device.stream());
    device.synchronize(device.stream());
  }
  void copy_rows(const Tensor& from, int64_t begin, const Tensor& to, int64_t at, int64_t count) const {
    if (count == 0) return;
    context.kernels.axpby(context.stream, {.x = from.slice(begin, count), .y = to.slice(at, count)});
  }
  Tensor reorder(const Tensor& x, const Tensor& index) const {  // y[i] = x[index[i]]
    Tensor y = context.make({slots, C}, x.dtype());
    context.kernels.expert_gather(context.stream, {.x = x, .slot_of_row = index, .y = y});
    return y;
  }
};

}  // namespace

Variable ExpertAxis::mlp(const Context& context, const Variable& rows, const Tensor& group_offsets, Parameter& up,
                         Parameter& down, const spec::ModelSpec& spec) const {
  const int64_t R = rows.value.rows(), C = rows.value.size(-1);
  const auto exchange = std::make_shared<Exchange>(group_, num_experts_, capacity_, R, group_offsets);
  most_rounds_ = std::max(most_rounds_, exchange->rounds);

  // Rows of this rank to the experts' ranks, sorted there by expert.
  auto make_moves = [exchange, C](const Context& inner) {
    const int64_t slots = exchange->P * exchange->cap;
    return Moves{inner,
                 slots,
                 C,
                 exchange->experts,
                 inner.make({exchange->experts + 1}, DType::i32),
                 inner.make({slots}, DType::i32),
                 inner.make({slots}, DType::i32)};
  };
  auto dispatch = [exchange](const Moves& m, const Exchange::Round& round, const Tensor& from) {
    Tensor sent = m.context.make({m.slots, m.C}, from.dtype()), came = m.context.make({m.slots, m.C}, from.dtype());
    int64_t at = 0;
    for (size_t p = 0; p < round.send.size(); ++p) {
      m.copy_rows(from, round.first[p], sent, at, round.send[p]);
      at += round.send[p];
    }
    exchange->group.all_to_all(sent, round.send, came, round.receive);
    return m.reorder(came, m.slot_of_row);
  };
  // Results back to where the rows came from.
  auto give_back = [exchange](const Moves& m, const Exchange::Round& round, const Tensor& sorted, const Tensor& to) {
    const Tensor came = m.reorder(sorted, m.row_of_slot);
    Tensor home = m.context.make({m.slots, m.C}, sorted.dtype());
    exchange->group.all_to_all(came, round.receive, home, round.send);
    int64_t at = 0;
    for (size_t p = 0; p < round.send.size(); ++p) {
      m.copy_rows(home, at, to, round.first[p], round.send[p]);
      at += round.send[p];
    }
  };
  auto visit_rounds = [exchange, make_moves](const Context& outer, const auto& use) {
    RoundMemory memory(outer.memory);
    for (int64_t r = 0; r < exchange->rounds; ++r) {
      memory.begin_round();
      const Context inner{outer.kernels, outer.stream, memory, nullptr, outer.fp8, outer.compute};
      const Moves moves = make_moves(inner);
      const Exchange::Round round = exchange->round(r);
      if (!exchange->is_planned) {
        moves.copy(moves.offsets, round.offsets);
        moves.copy(moves.row_of_slot, round.row_of_slot);
        moves.copy(moves.slot_of_row, round.slot_of_row);
      }
      use(moves, round);
    }
  };

  Tensor y = context.make({R, C}, rows.value.dtype());
  visit_rounds(context, [&](const Moves& m, const Exchange::Round& round) {
    const Variable sorted{dispatch(m, round, rows.value), nullptr, nullptr};
    give_back(m, round, ops::expert_mlp(m.context, sorted, m.offsets, up, down, spec).value, y);
  });
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  context.tape->record([context, rows, slot = result.slot, visit_rounds, dispatch, give_back, &up, &down, spec] {
    Tensor dy = ops::take_gradient(slot, "experts");
    Tensor dx = context.make(rows.value.shape(), rows.value.dtype());
    visit_rounds(context, [&](const Moves& m, const auto& round) {
      autograd::Tape tape(autograd::Recompute::none);
      Context recording = m.context;
      recording.tape = &tape;
      const Variable sorted = autograd::Tape::make_variable(dispatch(m, round, rows.value));
      const Variable out = ops::expert_mlp(recording, sorted, m.offsets, up, down, spec);
      ops::accumulate(recording, out, dispatch(m, round, dy));
      tape.backward();
      give_back(m, round, ops::take_gradient(sorted.slot, "experts"), dx);
    });
    ops::accumulate(context, rows, std::move(dx));
  });
  return result;
}

}  // namespace sinter::parallel
