#include "comm/communicator.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"
#include "comm/launch.h"

namespace sinter::comm {
namespace {

using core::Tensor;

struct Done : Work {
  bool advance() override { return true; }
  void wait() override {}
};

bool is_reduction(Collective kind) {
  return kind == Collective::all_reduce || kind == Collective::reduce || kind == Collective::reduce_scatter;
}

bool can_be_reduced(core::DType dtype) {
  using core::DType;
  switch (dtype) {
    case DType::f32:
    case DType::f64:
    case DType::bf16:
    case DType::f16:
    case DType::f8e4m3:
    case DType::f8e5m2:
    case DType::i32:
    case DType::i64:
      return true;
    default:
      return false;
  }
}

// A view of host numbers as a tensor.
template <class T>
Tensor view(std::span<T> values, core::DType dtype) {
  return Tensor::view_of(values.data(), {static_cast<int64_t>(values.size())}, dtype, {});
}

int64_t total(const std::vector<int64_t>& rows) {
  int64_t sum = 0;
  for (int64_t n : rows) sum += n;
  return sum;
}

}  // namespace

const char* collective_name(Collective kind) {
  constexpr const char* kNames[] = {"barrier", "all_reduce", "reduce",     "broadcast", "reduce_scatter", "all_gather",
                                    "gather",  "scatter",    "all_to_all", "send",      "receive"};
  return kNames[static_cast<size_t>(kind)];
}

std::string describe(const Call& call) {
  constexpr const char* kOps[] = {"sum", "min", "max"};
  std::string text = collective_name(call.kind);
  if (is_reduction(call.kind)) text += fmt::format(" ({})", kOps[static_cast<size_t>(call.op)]);
  if (call.tensor())
    text += fmt::format(" of {} {}", call.tensor().num_elements(), base::dtype_name(call.tensor().dtype()));
  if (call.kind == Collective::send) text += fmt::format(" to rank {}", call.peer);
  if (call.kind == Collective::receive) text += fmt::format(" from rank {}", call.peer);
  return text;
}

Handle done() { return std::make_unique<Done>(); }

// Calls that cannot be right are refused here, once for all backends.
Handle Communicator::checked(Call call) {
  const int64_t ranks = size();
  const int64_t in = call.input.num_elements(), out = call.output.num_elements();
  auto fail_sizes = [&](const char* rule) {
    base::fail("[{}] rank {} of '{}': {} elements in and {} out on {} ranks; expected {}", collective_name(call.kind),
               rank(), label_, in, out, ranks, rule);
  };
  if (call.input && call.output) {
    SINTER_CHECK(call.input.dtype() == call.output.dtype() && call.input.device() == call.output.device(),
                 "[{}] rank {} of '{}': input is {} on {}, output {} on {}", collective_name(call.kind), rank(), label_,
                 base::dtype_name(call.input.dtype()), call.input.device().to_string(),
                 base::dtype_name(call.output.dtype()), call.output.device().to_string());
  }
  SINTER_CHECK(!is_reduction(call.kind) || can_be_reduced(call.tensor().dtype()), "[{}] {} cannot be reduced",
               collective_name(call.kind), base::dtype_name(call.tensor().dtype()));
  SINTER_CHECK(call.peer >= 0 && call.peer < ranks, "[{}] rank {} is not in '{}', which has {} ranks",
               collective_name(call.kind), call.peer, label_, ranks);
  const bool is_root = rank() == call.peer;
  switch (call.kind) {
    case Collective::reduce_scatter:
      if (in != out * ranks) fail_sizes("input = ranks x output");
      break;
    case Collective::all_gather:
      if (out != in * ranks) fail_sizes("output = ranks x input");
      break;
    case Collective::gather:
      if (is_root && out != in * ranks) fail_sizes("output = ranks x input");
      break;
    case Collective::scatter:
      if (is_root && in != out * ranks) fail_sizes("input = ranks x output");
      break;
    case Collective::all_to_all:
      SINTER_CHECK(static_cast<int64_t>(call.send_rows.size()) == ranks &&
                       static_cast<int64_t>(call.receive_rows.size()) == ranks &&
                       total(call.send_rows) <= call.input.size(0) && total(call.receive_rows) <= call.output.size(0),
                   "[all_to_all] rank {} of '{}': {} rows to send of {}, {} to receive in {}, for {} ranks", rank(),
                   label_, total(call.send_rows), call.input.size(0), total(call.receive_rows), call.output.size(0),
                   ranks);
      break;
    default:
      break;
  }
  if (call.tensor() && call.tensor().device().kind == core::DeviceKind::shapes) return done();
  return start(std::move(call));
}

std::unique_ptr<Communicator> Communicator::split(int color, int key, std::string label) {
  std::unique_ptr<Communicator> group = make_group(color, key);
  group->label_ = std::move(label);
  group->deadline_ = deadline_;
  return group;
}

Handle Communicator::start_all_reduce(const Tensor& values, ReduceOp op) {
  return checked({.kind = Collective::all_reduce, .output = values, .op = op});
}
Handle Communicator::start_reduce(const Tensor& values, int root, ReduceOp op) {
  return checked({.kind = Collective::reduce, .output = values, .op = op, .peer = root});
}
Handle Communicator::start_broadcast(const Tensor& values, int root) {
  return checked({.kind = Collective::broadcast, .output = values, .peer = root});
}
Handle Communicator::start_reduce_scatter(const Tensor& input, const Tensor& output, ReduceOp op) {
  return checked({.kind = Collective::reduce_scatter, .input = input, .output = output, .op = op});
}
Handle Communicator::start_all_gather(const Tensor& input, const Tensor& output) {
  return checked({.kind = Collective::all_gather, .input = input, .output = output});
}
Handle Communicator::start_gather(const Tensor& input, const Tensor& output, int root) {
  return checked(
      {.kind = Collective::gather, .input = input, .output = rank() == root ? output : Tensor(), .peer = root});
}
Handle Communicator::start_scatter(const Tensor& input, const Tensor& output, int root) {
  return checked(
      {.kind = Collective::scatter, .input = rank() == root ? input : Tensor(), .output = output, .peer = root});
}
Handle Communicator::start_all_to_all(const Tensor& input, const Tensor& output) {
  const int64_t n = input.num_elements(), ranks = size();
  SINTER_CHECK(n == output.num_elements() && n % ranks == 0,
               "[all_to_all] {} elements in and {} out; expected the same multiple of {} ranks", n,
               output.num_elements(), ranks);
  const std::vector<int64_t> rows(static_cast<size_t>(ranks), n / ranks);
  return start_all_to_all(input.reshape({n}), rows, output.reshape({n}), rows);
}
Handle Communicator::start_all_to_all(const Tensor& input, std::span<const int64_t> send_rows, const Tensor& output,
                                      std::span<const int64_t> receive_rows) {
  return checked({.kind = Collective::all_to_all,
                  .input = input,
                  .output = output,
                  .send_rows = {send_rows.begin(), send_rows.end()},
                  .receive_rows = {receive_rows.begin(), receive_rows.end()}});
}
Handle Communicator::start_send(const Tensor& values, int to, int tag) {
  return checked({.kind = Collective::send, .input = values, .peer = to, .tag = tag});
}
Handle Communicator::start_receive(const Tensor& values, int from, int tag) {
  return checked({.kind = Collective::receive, .output = values, .peer = from, .tag = tag});
}
void Communicator::barrier() { checked({.kind = Collective::barrier})->wait(); }

template <class T>
void Communicator::reduce_numbers(std::span<T> values, ReduceOp op) {
  if (!values.empty()) all_reduce(view(values, base::dtype_of<T>), op);
}
void Communicator::all_reduce(std::span<float> values, ReduceOp op) { reduce_numbers(values, op); }
void Communicator::all_reduce(std::span<double> values, ReduceOp op) { reduce_numbers(values, op); }
void Communicator::all_reduce(std::span<int64_t> values, ReduceOp op) { reduce_numbers(values, op); }

void Communicator::broadcast(std::span<std::byte> bytes, int root) {
  if (!bytes.empty()) broadcast(view(bytes, core::DType::u8), root);
}

void Communicator::all_gather(std::span<const std::byte> input, std::span<std::byte> output) {
  if (input.empty()) return;
  auto* bytes = const_cast<std::byte*>(input.data());  // a tensor that is only read
  all_gather(view(std::span(bytes, input.size()), core::DType::u8), view(output, core::DType::u8));
}

double Communicator::sum(double value) {
  all_reduce(std::span(&value, 1), ReduceOp::sum);
  return value;
}

int64_t Communicator::sum(int64_t value) {
  all_reduce(std::span(&value, 1), ReduceOp::sum);
  return value;
}

int64_t Communicator::max(int64_t value) {
  all_reduce(std::span(&value, 1), ReduceOp::max);
  return value;
}

std::string Communicator::broadcast_text(std::string text) {
  auto length = static_cast<int64_t>(text.size());
  broadcast(std::as_writable_bytes(std::span(&length, 1)), 0);
  text.resize(static_cast<size_t>(length));
  broadcast(std::as_writable_bytes(std::span(text)), 0);
  return text;
}

std::vector<std::string> Communicator::gather_texts(const std::string& text) {
  const auto ranks = static_cast<size_t>(size());
  std::vector<int64_t> lengths(ranks);
  lengths[static_cast<size_t>(rank())] = static_cast<int64_t>(text.size());
  all_reduce(std::span(lengths), ReduceOp::sum);
  std::vector<std::string> texts(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    texts[r] = static_cast<int>(r) == rank() ? text : std::string(static_cast<size_t>(lengths[r]), '\0');
    broadcast(std::as_writable_bytes(std::span(texts[r])), static_cast<int>(r));
  }
  return texts;
}

Communicator& world() {
  static const std::unique_ptr<Communicator> instance = [] {
    const Launch& found = launch();
    if (found.ranks == 1) return make_self();
    SINTER_CHECK(has_mpi(),
                 "launched with {} ranks by {}, but this sinter was built without MPI; build it where MPI is found",
                 found.ranks, found.launcher);
    std::unique_ptr<Communicator> mpi = make_mpi();
    SINTER_CHECK(
        mpi->size() == found.ranks,
        "{} launched {} ranks, but MPI finds {}: launch with the mpirun of the MPI that this program was built "
        "with, or with srun --mpi=pmix",
        found.launcher, found.ranks, mpi->size());
    return mpi;
  }();
  return *instance;
}

}  // namespace sinter::comm
