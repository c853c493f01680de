#include "models/parameter_store.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "kernels/table.h"

namespace sinter::models {
namespace {

constexpr int64_t kAlignElements = 64;

int64_t aligned(int64_t n) { return (n + kAlignElements - 1) / kAlignElements * kAlignElements; }

// Elements of a tensor in the flat buffers.
int64_t room_of(const ParameterStore::Slot& slot) { return slot.is_apart ? 0 : aligned(slot.info.num_elements()); }

// Place of a tensor within its block: matrices with short gradients, other matrices, those that are never divided,
// vectors, experts.
int place_in_block(const spec::ParameterSpec& info, bool has_short_gradient) {
  if (info.expert_axis >= 0) return 4;
  if (!info.decays) return 3;
  if (info.role == spec::ParameterRole::router || info.role == spec::ParameterRole::adapter) return 2;
  return has_short_gradient ? 0 : 1;
}

}  // namespace

ParameterStore::ParameterStore(const spec::ModelSpec& spec, const StoreOptions& options)
    : ParameterStore(spec::whole_table(spec), options) {}

ParameterStore::ParameterStore(std::vector<spec::LocalParameter> table, const StoreOptions& options)
    : options_(options) {
  for (spec::LocalParameter& p : table) {
    const bool is_apart = options_.apart.contains(p.info.name);
    slots_.push_back({std::move(p.info), 0, {}, p.global_shape, std::move(p.boxes), p.gradient_parts, 0, is_apart});
  }
  divides_masters_ = options_.division.weights || (options_.division.states && options_.compute != DType::f32);
  lay_out();
  allocate();
  for (size_t i = 0; i < slots_.size(); ++i) bind(i);
  bind_adapters();
}

// A product of 16-bit activations makes this gradient in one piece per micro-batch.
bool ParameterStore::has_short_gradient(const Slot& slot) const {
  const spec::ParameterSpec& info = slot.info;
  return options_.gradients != DType::f32 && info.decays && !is_frozen(slot) &&
         (info.role == spec::ParameterRole::matrix || info.role == spec::ParameterRole::expert_matrix);
}

void ParameterStore::lay_out() {
  for (size_t i = 0; i < slots_.size(); ++i) order_.push_back(i);
  auto key = [&](size_t i) {
    const Slot& slot = slots_[i];
    return std::tuple(is_frozen(slot), slot.info.layer, place_in_block(slot.info, has_short_gradient(slot)));
  };
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  for (size_t i : order_) {
    Slot& slot = slots_[i];
    const bool has_experts = slot.info.expert_axis >= 0;
    const int64_t count = room_of(slot);
    begin_segment(slot);
    slot.offset = num_elements_;
    num_elements_ += count;
    if (is_frozen(slot)) continue;
    num_trainable_ = num_elements_;
    last_is_short_ = has_short_gradient(slot);
    int64_t& gradients = last_is_short_ ? num_short_gradients_ : num_gradients_;
    slot.grad_offset = gradients;
    gradients += count;
    if (ranges_.empty() || ranges_.back().layer != slot.info.layer || ranges_.back().decays != slot.info.decays ||
        ranges_.back().has_experts != has_experts) {
      ranges_.push_back({slot.offset, slot.offset, slot.info.layer, slot.info.decays, has_experts});
    }
    ranges_.back().end = num_elements_;
  }
  end_segment();
}

// A tensor is about to be laid down: is it one with those before?
void ParameterStore::begin_segment(const Slot& slot) {
  const Division& division = options_.division;
  const bool is_expert = slot.info.expert_axis >= 0;
  Segment next{.begin = num_elements_,
               .layer = slot.info.layer,
               .unit = division.unit_of(slot.info.layer),
               .has_experts = is_expert,
               .is_divided = !is_frozen(slot) && !slot.is_apart && division.divides(slot.info),
               .is_frozen = is_frozen(slot)};
  if (next.is_divided) {
    next.parts = is_expert ? division.expert_parts : division.parts;
    next.part = is_expert ? division.expert_part : division.part;
  }
  if (!segments_.empty()) {
    const Segment& last = segments_.back();
    const bool is_same = last.layer == next.layer && last.has_experts == next.has_experts;
    if (last.is_frozen == next.is_frozen && last.is_divided == next.is_divided && (is_same || next.is_frozen)) return;
    end_segment();
    next.begin = num_elements_;
  }
  segments_.push_back(next);
}

// Pads what was laid down, so that all pieces are equal.
void ParameterStore::end_segment() {
  if (segments_.empty()) return;
  Segment& last = segments_.back();
  const int64_t step = kAlignElements * last.parts, count = num_elements_ - last.begin;
  const int64_t padding = (count + step - 1) / step * step - count;
  num_elements_ += padding;
  last.end = num_elements_;
  if (last.is_frozen) return;
  (last_is_short_ ? num_short_gradients_ : num_gradients_) += padding;
  num_trainable_ = num_elements_;
  if (!ranges_.empty()) ranges_.back().end = num_elements_;
}

// Where each segment stands in the buffers.
ParameterStore::Sizes ParameterStore::place_segments() {
  const bool rounds = options_.compute != DType::f32;
  Sizes sizes;
  auto place = [](int64_t& size, int64_t count) { return std::exchange(size, size + count); };
  for (Segment& s : segments_) {
    const bool has_master_piece = s.is_divided && divides_masters_, has_slot = s.is_divided && divides_weights(),
               has_gradient_piece = s.is_divided && divides_gradients();
    if (!s.is_frozen || !rounds)
      s.master_at = has_master_piece ? place(sizes.master_pieces, s.piece()) : place(sizes.masters, s.count());
    s.weight_at = has_slot ? 0 : place(sizes.weights, s.count());
    if (s.is_frozen) continue;
    s.gradient_at = has_gradient_piece ? place(sizes.gradient_pieces, s.piece()) : place(sizes.gradients, s.count());
  }
  return sizes;
}

const Segment& ParameterStore::segment_of(int64_t offset) const {
  auto next = std::upper_bound(segments_.begin(), segments_.end(), offset,
                               [](int64_t at, const Segment& s) { return at < s.begin; });
  while (next != segments_.begin() && (next - 1)->count() == 0 && next - 1 != segments_.begin()) --next;
  SINTER_CHECK(next != segments_.begin(), "[store] no segment holds element {}", offset);
  return *(next - 1);
}

void ParameterStore::allocate() {
  core::DeviceRuntime& device = core::runtime(options_.device);
  auto zeros = [&](int64_t count, DType dtype) {
    Tensor t(device.allocator(), {count}, dtype);
    device.set_zero(t.raw(), t.bytes(), device.stream());
    return t;
  };
  const bool rounds = options_.compute != DType::f32, has_master = options_.trains || !rounds;
  const Sizes sizes = place_segments();
  const int64_t slots = place_in_slots(segments_, options_.division);
  auto pieces = [&](int64_t count, bool is_on_host) {
    Tensor t(is_on_host ? *options_.host : device.allocator(), {count}, DType::f32);
    core::runtime(t.device()).set_zero(t.raw(), t.bytes(), core::runtime(t.device()).stream());
    return t;
  };
  if (has_master) master_ = zeros(sizes.masters, DType::f32);
  if (divides_masters_)
    master_pieces_ = pieces(sizes.master_pieces, options_.division.host_states || options_.division.host_weights);
  compute_ = rounds ? zeros(sizes.weights, options_.compute) : master_;
  if (divides_weights()) weight_slots_ = zeros(slots, options_.compute);
  int64_t vectors = 0;
  for (const Slot& slot : slots_) {
    if (has_own_vector(slot)) vectors += room_of(slot);
  }
  if (vectors > 0) vectors_ = zeros(vectors, DType::f32);
  if (!options_.trains) return;
  SINTER_CHECK(!divides_gradients() || num_short_gradients_ == 0, "[store] short gradients are not divided");
  grad_ = zeros(divides_gradients() ? sizes.gradients : num_gradients_, DType::f32);
  if (divides_gradients()) {
    gradient_slots_ = zeros(slots, DType::f32);
    gradient_pieces_ = pieces(sizes.gradient_pieces, options_.division.host_gradients);
  }
  if (num_short_gradients_ > 0) short_grad_ = zeros(num_short_gradients_, options_.gradients);
  if (kernels::kernels_for(options_.device).writes_square_sums)
    squares_ = zeros(static_cast<int64_t>(slots_.size()), DType::f32);
}

// Norms and biases are read in f32, also where no master of the weights is kept.
bool ParameterStore::has_own_vector(const Slot& slot) const {
  return !slot.info.decays && options_.compute != DType::f32 && (!options_.trains || is_frozen(slot));
}

// Points a tensor's views into the buffers.
void ParameterStore::bind(size_t index) {
  Slot& slot = slots_[index];
  index_[slot.info.name] = index;
  Parameter& p = slot.parameter;
  const int64_t n = slot.info.num_elements();
  p.name = slot.info.name;
  if (options_.keeps_derived) p.weight.derived = &p.derived;
  if (slot.is_apart) {  // sizes are known before the weights come
    const base::Shape& shape = slot.info.shape;
    auto blocks = std::make_shared<core::WeightBlocks>();
    blocks->experts = shape.rank() == 3 ? shape[0] : 1;
    blocks->rows = shape[-2];
    blocks->columns = shape[-1];
    p.weight.blocks = std::move(blocks);
    return;
  }
  const Segment& segment = segment_of(slot);
  const int64_t in_segment = slot.offset - segment.begin;
  const bool rounds = options_.compute != DType::f32, has_master = master_ && !(rounds && is_frozen(slot));
  const Tensor weights =
      segment.is_divided && divides_weights() ? weight_slot(segment).slice(in_segment, n) : weights_of(slot.offset, n);
  p.weight.data = weights.reshape(slot.info.shape);
  if (has_master && !(segment.is_divided && divides_masters_)) {
    p.master = masters_of(slot.offset, n).reshape(slot.info.shape);
  } else if (has_own_vector(slot)) {
    int64_t before = 0;
    for (size_t i = 0; i < index; ++i) before += has_own_vector(slots_[i]) ? room_of(slots_[i]) : 0;
    p.master = vectors_.slice(before, n).reshape(slot.info.shape);
  }
  if (!is_trained(slot)) return;
  const bool has_slot = segment.is_divided && divides_gradients();
  const Tensor gradient = has_slot ? gradient_slot(segment).slice(in_segment, n) : gradients_of(slot.offset, n);
  const bool has_squares = squares_ && !has_slot && !has_short_gradient(slot);
  p.grad = autograd::Gradient(gradient.reshape(slot.info.shape),
                              has_squares ? squares_.slice(static_cast<int64_t>(index), 1) : Tensor());
}

// Gathers the tensors of every low-rank term at the weight they stand beside.
void ParameterStore::bind_adapters() {
  for (Slot& slot : slots_) {
    const spec::AdapterPlace& place = slot.info.adapter;
    if (place.term == spec::AdapterTerm::none) continue;
    Parameter& target = get(place.target);
    auto found = std::find_if(target.adapters.begin(), target.adapters.end(),
                              [&](const auto& adapter) { return adapter.first_row == place.first_row; });
    if (found == target.adapters.end()) {
      target.adapters.push_back({.scale = place.scale,
                                 .dropout = place.dropout,
                                 .first_row = place.first_row,
                                 .rows = place.rows,
                                 .number = target.adapters.size()});
      found = target.adapters.end() - 1;
    }
    if (place.term == spec::AdapterTerm::a) found->a = &slot.parameter;
    if (place.term == spec::AdapterTerm::b) found->b = &slot.parameter;
    if (place.term == spec::AdapterTerm::magnitude) found->magnitude = &slot.parameter;
  }
}

void ParameterStore::use_adapters(bool are_on) {
  for (Slot& slot : slots_) slot.parameter.adapters_are_on = are_on;
}

ParameterStore::Range ParameterStore::block_range(int64_t layer) const {
  Range block{0, 0, layer};
  for (const Range& range : ranges_) {
    if (range.layer != layer) continue;
    if (block.end == 0) block.begin = range.begin;
    block.end = range.end;
  }
  return block;
}

std::vector<Tensor> ParameterStore::gradients() const {
  std::vector<Tensor> all;
  if (short_grad_) all.push_back(short_grad_);
  all.push_back(grad_);
  if (divides_gradients()) all.push_back(gradient_slots_);
  if (divides_gradients() && !options_.division.host_gradients) all.push_back(gradient_pieces_);
  return all;
}

Tensor ParameterStore::gradients_of(int64_t begin, int64_t count) const {
  auto next = std::upper_bound(order_.begin(), order_.end(), begin,
                               [&](int64_t at, size_t i) { return at < slots_[i].offset; });
  SINTER_CHECK(next != order_.begin(), "[store] no tensor holds element {}", begin);
  const Slot& slot = slots_[*(next - 1)];
  const Segment& segment = segment_of(begin);
  if (divides_gradients()) {
    if (segment.is_divided) return gradient_pieces_.slice(segment.gradient_at + begin - segment.own_begin(), count);
    return grad_.slice(segment.gradient_at + begin - segment.begin, count);
  }
  const Tensor& buffer = has_short_gradient(slot) ? short_grad_ : grad_;
  return buffer.slice(slot.grad_offset + begin - slot.offset, count);
}

Tensor ParameterStore::masters_of(int64_t begin, int64_t count) const {
  const Segment& segment = segment_of(begin);
  if (segment.is_divided && divides_masters_)
    return master_pieces_.slice(segment.master_at + begin - segment.own_begin(), count);
  return master_.slice(segment.master_at + begin - segment.begin, count);
}

Tensor ParameterStore::weights_of(int64_t begin, int64_t count) const {
  const Segment& segment = segment_of(begin);
  if (segment.is_divided && divides_weights()) return {};
  if (options_.compute == DType::f32) return masters_of(begin, count);
  return compute_.slice(segment.weight_at + begin - segment.begin, count);
}

Tensor ParameterStore::weight_slot(const Segment& segment) const {
  return weight_slots_.slice(segment.slot_at, segment.count());
}

Tensor ParameterStore::gradient_slot(const Segment& segment) const {
  return gradient_slots_.slice(segment.slot_at, segment.count());
}

size_t ParameterStore::master_bytes() const {
  const bool is_on_host = options_.division.host_states || options_.division.host_weights;
  return (master_ ? master_.bytes() : 0) + (master_pieces_ && !is_on_host ? master_pieces_.bytes() : 0);
}

core::Allocator& ParameterStore::state_memory() const {
  return options_.division.host_states ? *options_.host : core::runtime(options_.device).allocator();
}

size_t ParameterStore::weight_bytes() const {
  const size_t slots = weight_slots_ ? weight_slots_.bytes() : 0;
  return slots + (options_.compute == DType::f32 ? 0 : compute_.bytes());
}

std::vector<ParameterStore::Stretch> ParameterStore::owned() const {
  std::vector<Stretch> out;
  for (const Segment& s : segments_) {
    if (s.is_frozen || s.count() == 0) continue;
    const Stretch own = s.is_divided ? Stretch{s.own_begin(), s.piece()} : Stretch{s.begin, s.count()};
    const bool is_next = !out.empty() && out.back().begin + out.back().count == own.begin;
    if (is_next && !options_.division.is_on()) {
      out.back().count += own.count;
    } else {
      out.push_back(own);
    }
  }
  return out;
}

Parameter* ParameterStore::find(const std::string& name) {
  auto it = index_.find(name);
  return it == index_.end() ? nullptr : &slots_[it->second].parameter;
}

Parameter& ParameterStore::get(const std::string& name) {
  if (Parameter* p = find(name)) return *p;
  std::vector<std::string> names;
  for (const Slot& slot : slots_) names.push_back(slot.info.name);
  base::fail("the model has no tensor '{}'{}", name, base::did_you_mean(name, names));
}

void ParameterStore::begin_step() {
  for (Slot& slot : slots_) slot.parameter.grad.discard();
}

void ParameterStore::forget_squares() {
  for (Slot& slot : slots_) slot.parameter.grad.forget_squares();
}

void ParameterStore::sum_gradient_squares(const kernels::KernelTable& kernels, core::Stream& stream,
                                          const Tensor& total) const {
  kernels.fill(stream, {total, 0.0f});
  if (squares_) {
    for (size_t i = 0; i < slots_.size(); ++i) {
      if (!slots_[i].parameter.grad.has_squares())
        kernels.fill(stream, {squares_.slice(static_cast<int64_t>(i), 1), 0.0f});
    }
    kernels.sum(stream, {.x = squares_, .total = total});
  }
  // Stretches of a buffer without sums are read.
  for (bool is_short : {true, false}) {
    const Tensor& buffer = is_short ? short_grad_ : grad_;
    int64_t begin = 0, end = 0;
    auto read = [&] {
      if (end > begin) kernels.sum_squares(stream, {.x = buffer.slice(begin, end - begin), .total = total});
    };
    for (size_t i : order_) {
      const Slot& slot = slots_[i];
      if (is_frozen(slot) || has_short_gradient(slot) != is_short) continue;
      if (slot.parameter.grad.has_squares() || slot.grad_offset != end) {
        read();
        begin = slot.grad_offset + (slot.parameter.grad.has_squares() ? room_of(slot) : 0);
      }
      end = slot.grad_offset + room_of(slot);
    }
    read();
  }
}

}  // namespace sinter::models
