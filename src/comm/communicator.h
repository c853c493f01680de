// Collectives and messages between the ranks of a run, on tensors in host or device memory. Every rank is a process;
// `self` is a group of one, `mpi` many. A communicator is a group of ranks; split() makes smaller ones
// (parallel/mesh.h names them after the axes of a layout).
//
// All ranks of a group make the same calls in the same order. On MPI sums are taken in the order of the ranks, in
// double, so a run on N ranks gives the same bits every time. Not thread-safe: one thread per process talks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace sinter::comm {

enum class ReduceOp : uint8_t { sum, min, max };

enum class Collective : uint8_t {
  barrier,
  all_reduce,      // output = op over the ranks' inputs, on every rank
  reduce,          // the same on the root only
  broadcast,       // the root's values to all
  reduce_scatter,  // rank r keeps piece r of the reduced input
  all_gather,      // everyone's input, behind each other in the order of ranks, on every rank
  gather,          // the same on the root only
  scatter,         // piece r of the root's input to rank r
  all_to_all,      // piece r of my input to rank r; pieces may differ in size
  send,
  receive
};
const char* collective_name(Collective kind);  // "all_reduce"

// One call, as a backend gets it: checked, never on the shapes device, never of a group of one for `mpi`.
struct Call {
  Collective kind = Collective::barrier;
  core::Tensor input, output;  // input empty: in place on output (all_reduce, reduce, broadcast)
  ReduceOp op = ReduceOp::sum;
  int peer = 0;  // the root, or the other side of a message
  int tag = 0;   // of a message
  // all_to_all: rows (of axis 0) to and from each rank.
  std::vector<int64_t> send_rows, receive_rows;

  const core::Tensor& tensor() const { return output ? output : input; }
};
std::string describe(const Call& call);  // "all_reduce (sum) of 4096 f32"

// A call under way. The tensors given to it must stay untouched until wait() returned.
class Work {
 public:
  virtual ~Work() = default;
  // Moves it on without blocking; true when it is done.
  virtual bool advance() = 0;
  // After it, work enqueued on the device's main stream sees the result. On the host: it is done. Throws base::Error
  // naming the rank and the call when the deadline has passed or a peer is gone.
  virtual void wait() = 0;
};
using Handle = std::unique_ptr<Work>;  // never null

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* name() const = 0;  // the backend: "self", "mpi", "nccl"
  // Whether its sums change nothing, so that they may be left out.
  virtual bool is_trivial() const { return size() == 1; }
  // What the group is called in messages: "world", "tp".
  const std::string& label() const { return label_; }
  // Ranks of the same color form a group, ordered by (key, rank here). All ranks of this group call it.
  std::unique_ptr<Communicator> split(int color, int key, std::string label);
  // A call that takes longer than this many seconds throws; 0: it may wait for ever. Groups split off inherit it.
  void set_deadline(double seconds) { deadline_ = seconds; }
  double deadline() const { return deadline_; }

  // Tensors may lie on the host or on a device. f32, bf16, f16, fp8, f64, i32 and i64 can be reduced; every format can
  // be moved. start_x begins a call, x waits for it. On the shapes device nothing happens.
  Handle start_all_reduce(const core::Tensor& values, ReduceOp op = ReduceOp::sum);
  Handle start_reduce(const core::Tensor& values, int root, ReduceOp op = ReduceOp::sum);
  Handle start_broadcast(const core::Tensor& values, int root);
  // input: size() times the elements of output.
  Handle start_reduce_scatter(const core::Tensor& input, const core::Tensor& output, ReduceOp op = ReduceOp::sum);
  // output: size() times the elements of input. input may be its own piece of output.
  Handle start_all_gather(const core::Tensor& input, const core::Tensor& output);
  Handle start_gather(const core::Tensor& input, const core::Tensor& output, int root);   // output: root only
  Handle start_scatter(const core::Tensor& input, const core::Tensor& output, int root);  // input: root only
  // Equal pieces: both have size() times the same number of elements.
  Handle start_all_to_all(const core::Tensor& input, const core::Tensor& output);
  // Rows of axis 0 to and from each rank.
  Handle start_all_to_all(const core::Tensor& input, std::span<const int64_t> send_rows, const core::Tensor& output,
                          std::span<const int64_t> receive_rows);
  // tag: 0 to 32767. Messages with one tag between two ranks arrive in order.
  Handle start_send(const core::Tensor& values, int to, int tag = 0);
  Handle start_receive(const core::Tensor& values, int from, int tag = 0);

  void all_reduce(const core::Tensor& values, ReduceOp op = ReduceOp::sum) { start_all_reduce(values, op)->wait(); }
  void reduce(const core::Tensor& values, int root, ReduceOp op = ReduceOp::sum) {
    start_reduce(values, root, op)->wait();
  }
  void broadcast(const core::Tensor& values, int root) { start_broadcast(values, root)->wait(); }
  void reduce_scatter(const core::Tensor& input, const core::Tensor& output, ReduceOp op = ReduceOp::sum) {
    start_reduce_scatter(input, output, op)->wait();
  }
  void all_gather(const core::Tensor& input, const core::Tensor& output) { start_all_gather(input, output)->wait(); }
  void gather(const core::Tensor& input, const core::Tensor& output, int root) {
    start_gather(input, output, root)->wait();
  }
  void scatter(const core::Tensor& input, const core::Tensor& output, int root) {
    start_scatter(input, output, root)->wait();
  }
  void all_to_all(const core::Tensor& input, const core::Tensor& output) { start_all_to_all(input, output)->wait(); }
  void all_to_all(const core::Tensor& input, std::span<const int64_t> send_rows, const core::Tensor& output,
                  std::span<const int64_t> receive_rows) {
    start_all_to_all(input, send_rows, output, receive_rows)->wait();
  }
  void send(const core::Tensor& values, int to, int tag = 0) { start_send(values, to, tag)->wait(); }
  void receive(const core::Tensor& values, int from, int tag = 0) { start_receive(values, from, tag)->wait(); }
  void barrier();

  // Numbers of the host.
  void all_reduce(std::span<float> values, ReduceOp op);
  void all_reduce(std::span<double> values, ReduceOp op);
  void all_reduce(std::span<int64_t> values, ReduceOp op);
  void broadcast(std::span<std::byte> bytes, int root);
  void all_gather(std::span<const std::byte> input, std::span<std::byte> output);
  double sum(double value);
  int64_t sum(int64_t value);
  int64_t max(int64_t value);
  // The first rank's text, on all of them.
  std::string broadcast_text(std::string text);
  // Everyone's text, in the order of ranks, on every rank.
  std::vector<std::string> gather_texts(const std::string& text);

 protected:
  // What a backend implements.
  virtual Handle start(Call call) = 0;
  virtual std::unique_ptr<Communicator> make_group(int color, int key) = 0;
  // For a backend that hands some calls to another one.
  static Handle start_on(Communicator& other, Call call) { return other.start(std::move(call)); }

 private:
  Handle checked(Call call);
  template <class T>
  void reduce_numbers(std::span<T> values, ReduceOp op);
  std::string label_ = "world";
  double deadline_ = 0;
};

// A call that is done.
Handle done();

// The communicator of this process: MPI when the program was launched with more than one rank (comm/launch.h), else
// `self`. Made at the first call (MPI is initialised then) and alive to the end of the program. Throws base::Error when
// the launch has several ranks but this program was built without MPI. For the program's main; all else gets a mesh.
Communicator& world();

// A run of one, for tests and tools.
std::unique_ptr<Communicator> make_self();
// Implemented in comm/mpi/mpi.cc, or as absent (null) in comm/mpi_absent.cc (chosen by CMake).
std::unique_ptr<Communicator> make_mpi();
bool has_mpi();
// Ends all ranks of the launch with this exit status: for an error on one rank that others would wait for.
void abort_all(int status);

}  // namespace sinter::comm
