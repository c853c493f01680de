// The communicator over MPI: groups are MPI communicators, calls are MpiWork.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/mpi/work.h"

namespace sinter::comm {
namespace {

// Reductions count bytes in ints; larger ones go in pieces.
constexpr int64_t kMaxReduceBytes = int64_t{1} << 30;

// Several calls that count as one.
class Series : public Work {
 public:
  std::vector<Handle> parts;
  bool advance() override {
    bool is_done = true;
    for (Handle& part : parts) is_done = part->advance() && is_done;
    return is_done;
  }
  void wait() override {
    for (Handle& part : parts) part->wait();
  }
};

class Mpi : public Communicator {
 public:
  Mpi(MPI_Comm comm, std::vector<std::string> names, bool owns_mpi)
      : names_(std::move(names)), group_(std::make_unique<MpiGroup>(comm, names_)), owns_mpi_(owns_mpi) {}
  ~Mpi() override {
    group_.reset();
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (owns_mpi_ && !finalized) MPI_Finalize();
  }
  int rank() const override { return group_->rank; }
  int size() const override { return group_->size; }
  const char* name() const override { return "mpi"; }

 protected:
  std::unique_ptr<Communicator> make_group(int color, int key) override {
    MPI_Comm comm = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(group_->first, color, key, &comm), "split of '" + label() + "'");
    return std::make_unique<Mpi>(comm, names_, false);
  }
  Handle start(Call call) override {
    const bool is_reduction = call.kind == Collective::all_reduce || call.kind == Collective::reduce;
    if (!is_reduction || static_cast<int64_t>(call.output.bytes()) <= kMaxReduceBytes) return make(std::move(call));
    const core::Tensor flat = call.output.reshape({call.output.num_elements()});
    const int64_t most = kMaxReduceBytes / static_cast<int64_t>(base::dtype_bytes(flat.dtype()));
    auto series = std::make_unique<Series>();
    for (int64_t begin = 0; begin < flat.size(0); begin += most) {
      Call part = call;
      part.output = flat.slice(begin, std::min(most, flat.size(0) - begin));
      series->parts.push_back(make(std::move(part)));
    }
    return series;
  }

 private:
  Handle make(Call call) { return std::make_unique<MpiWork>(*group_, std::move(call), label(), deadline()); }

  std::vector<std::string> names_;  // of all ranks of the launch
  std::unique_ptr<MpiGroup> group_;
  bool owns_mpi_;
};

std::vector<std::string> rank_names() {
  int ranks = 1, length = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  char host[MPI_MAX_PROCESSOR_NAME] = {};
  MPI_Get_processor_name(host, &length);
  constexpr int kShown = 64;
  host[std::min(length, kShown - 1)] = 0;
  std::vector<char> all(static_cast<size_t>(ranks) * kShown);
  check_mpi(MPI_Allgather(host, kShown, MPI_CHAR, all.data(), kShown, MPI_CHAR, MPI_COMM_WORLD), "init");
  std::vector<std::string> names;
  for (int r = 0; r < ranks; ++r) names.push_back(fmt::format("rank {} ({})", r, all.data() + r * kShown));
  return names;
}

}  // namespace

std::unique_ptr<Communicator> make_mpi() {
  int provided = 0;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "init");
  SINTER_CHECK(provided >= MPI_THREAD_FUNNELED, "this MPI does not allow a program with threads");
  MPI_Comm comm = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "init");
  return std::make_unique<Mpi>(comm, rank_names(), true);
}
bool has_mpi() { return true; }

void abort_all(int status) {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized && !finalized) MPI_Abort(MPI_COMM_WORLD, status);
}

}  // namespace sinter::comm
