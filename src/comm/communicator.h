// Collectives between the ranks of a run. Every rank is a process; `self` is a run of one, `mpi` many.
//
// All ranks must make the same calls in the same order. Sums are taken in the order of the ranks whatever the transport
// does, so a run on N ranks gives the same bits every time. Not thread-safe: one thread per process talks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace sinter::comm {

enum class ReduceOp : uint8_t { sum, min, max };

// A collective under way. The buffers given to it must stay untouched and alive until wait() returned.
class Request {
 public:
  virtual ~Request() = default;
  // Moves it on without blocking; true when it is done.
  virtual bool advance() = 0;
  virtual void wait() = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const char* name() const = 0;  // "self", "mpi"

  virtual void barrier() = 0;
  // In place on every rank.
  virtual void all_reduce(std::span<float> values, ReduceOp op) = 0;
  virtual void all_reduce(std::span<double> values, ReduceOp op) = 0;
  virtual void all_reduce(std::span<int64_t> values, ReduceOp op) = 0;
  // Sum over the ranks, in place, behind other work: call advance() now and then, wait() before use.
  virtual std::unique_ptr<Request> start_all_reduce(std::span<float> values) = 0;
  // The root's bytes to all.
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  // Sum of everyone's `input` (size() * output.size() values); rank r keeps piece r.
  virtual void reduce_scatter(std::span<const float> input, std::span<float> output) = 0;
  // Everyone's `input` behind each other in order of rank; output is size() times as long.
  virtual void all_gather(std::span<const std::byte> input, std::span<std::byte> output) = 0;

  // Small helpers over the above.
  double sum(double value);
  int64_t sum(int64_t value);
  int64_t max(int64_t value);
  // The first rank's text, on all of them.
  std::string broadcast_text(std::string text);
};

// The communicator of this process: MPI when the program was launched by mpirun or srun with more than one rank, else
// `self`. Made at the first call (MPI is initialised then) and alive to the end of the program. Throws base::Error when
// the launch has several ranks but this program was built without MPI.
Communicator& world();

// Ranks of the launch as its environment says (Open MPI, PMIx, PMI, Slurm); 1 when there is none.
int launched_ranks();

// Ranks of the launch on this machine; 1 when the environment does not say.
int launched_local_ranks();

// A run of one, for tests and tools.
std::unique_ptr<Communicator> make_self();
// Implemented in comm/mpi/mpi.cc, or as absent (null) in comm/mpi_absent.cc (chosen by CMake).
std::unique_ptr<Communicator> make_mpi();
bool has_mpi();
// Ends all ranks of the launch with this exit status: for an error on one rank that others would wait for.
void abort_all(int status);

}  // namespace sinter::comm
