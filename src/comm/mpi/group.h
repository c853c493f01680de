// A group of ranks as MPI knows it, shared by a communicator and the calls under way on it.
#pragma once
#include <mpi.h>

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace sinter::comm {

class MpiWork;

struct MpiGroup {
  // MPI matches collectives by the order of the calls on a communicator. The two moves of a reduction therefore have
  // one each, and the second moves start in the order of the reductions whichever first move ends sooner.
  MPI_Comm first = MPI_COMM_NULL, second = MPI_COMM_NULL;
  int rank = 0, size = 1;
  std::vector<std::string> names;  // of the ranks: "rank 3 (node07)", by their number in the launch
  int64_t calls = 0;               // begun so far
  std::deque<MpiWork*> waiting;    // reductions whose second move has not started

  // Takes the communicator over; dup is for the second moves.
  explicit MpiGroup(MPI_Comm comm, const std::vector<std::string>& world_names);
  ~MpiGroup();
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  // For a rank that has waited in vain: tells the others where it is, listens to them for a moment, and returns who
  // said nothing and who is elsewhere. Ranks that wait in the same call come here at about the same time.
  std::string ask_around(const std::string& own_call) const;
};

// Throws base::Error naming rank and call.
void check_mpi(int code, const std::string& call);

// How many bytes MPI counts as one element: counts of MPI calls are ints, so large buffers are counted in larger units.
struct MpiUnit {
  MPI_Datatype type = MPI_BYTE;
  size_t bytes = 1;
  int count(size_t of_bytes) const { return static_cast<int>(of_bytes / bytes); }
};
// For a call that moves `total` bytes in pieces that all are multiples of `piece` bytes.
MpiUnit mpi_unit(size_t total, size_t piece, const std::string& call);

}  // namespace sinter::comm
