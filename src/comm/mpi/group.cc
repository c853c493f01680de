#include "comm/mpi/group.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <chrono>
#include <climits>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/error.h"

namespace sinter::comm {
namespace {

constexpr int kAskTag = 1;
constexpr auto kListen = std::chrono::seconds(3);

struct Position {
  int64_t calls = 0;
  char call[120] = {};
};

}  // namespace

void check_mpi(int code, const std::string& call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0, rank = -1;
  MPI_Error_string(code, text, &length);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  base::fail("rank {}: {} failed: {}", rank, call, std::string(text, static_cast<size_t>(length)));
}

MpiGroup::MpiGroup(MPI_Comm comm, const std::vector<std::string>& world_names) : first(comm) {
  check_mpi(MPI_Comm_dup(first, &second), "making a group");
  for (MPI_Comm c : {first, second}) MPI_Comm_set_errhandler(c, MPI_ERRORS_RETURN);
  MPI_Comm_rank(first, &rank);
  MPI_Comm_size(first, &size);
  MPI_Group own = MPI_GROUP_NULL, all = MPI_GROUP_NULL;
  MPI_Comm_group(first, &own);
  MPI_Comm_group(MPI_COMM_WORLD, &all);
  std::vector<int> here(static_cast<size_t>(size)), there(static_cast<size_t>(size));
  std::iota(here.begin(), here.end(), 0);
  MPI_Group_translate_ranks(own, size, here.data(), all, there.data());
  MPI_Group_free(&own);
  MPI_Group_free(&all);
  for (int r : there) names.push_back(world_names[static_cast<size_t>(r)]);
}

MpiGroup::~MpiGroup() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  MPI_Comm_free(&second);
  MPI_Comm_free(&first);
}

std::string MpiGroup::ask_around(const std::string& own_call) const {
  Position own;
  own.calls = calls;
  std::strncpy(own.call, own_call.c_str(), sizeof own.call - 1);
  const auto n = static_cast<size_t>(size);
  // Never freed: a rank that is gone does not take its message, and this process is about to end.
  auto* sent = new std::vector<MPI_Request>(n, MPI_REQUEST_NULL);
  auto* message = new Position(own);
  for (int r = 0; r < size; ++r) {
    if (r != rank) MPI_Isend(message, sizeof *message, MPI_BYTE, r, kAskTag, second, &(*sent)[static_cast<size_t>(r)]);
  }
  std::vector<Position> heard(n);
  std::vector<bool> has_answered(n);
  has_answered[static_cast<size_t>(rank)] = true;
  int missing = size - 1;
  const auto end = std::chrono::steady_clock::now() + kListen;
  while (missing > 0 && std::chrono::steady_clock::now() < end) {
    int there = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kAskTag, second, &there, &status);
    if (!there) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    const auto from = static_cast<size_t>(status.MPI_SOURCE);
    MPI_Recv(&heard[from], sizeof(Position), MPI_BYTE, status.MPI_SOURCE, kAskTag, second, MPI_STATUS_IGNORE);
    if (!has_answered[from]) --missing;
    has_answered[from] = true;
  }
  std::string text;
  for (size_t r = 0; r < n; ++r) {
    if (!has_answered[r]) {
      text += fmt::format("; no word from {}", names[r]);
    } else if (static_cast<int>(r) != rank && heard[r].calls != calls) {
      text += fmt::format("; {} is in its call {}, {}, this rank in its call {}", names[r], heard[r].calls,
                          heard[r].call, calls);
    }
  }
  return text;
}

MpiUnit mpi_unit(size_t total, size_t piece, const std::string& call) {
  if (total <= INT_MAX) return {};
  constexpr size_t kLargest = 4096;
  const size_t bytes = std::min(kLargest, size_t{1} << std::countr_zero(piece | kLargest));
  SINTER_CHECK(total / bytes <= INT_MAX, "{} moves {} bytes in pieces of {}: make the pieces a multiple of {} bytes",
               call, total, piece, kLargest);
  static std::array<MPI_Datatype, 13> types = [] {
    std::array<MPI_Datatype, 13> made{};
    for (size_t i = 0; i < made.size(); ++i) {
      MPI_Type_contiguous(1 << i, MPI_BYTE, &made[i]);
      MPI_Type_commit(&made[i]);
    }
    return made;
  }();
  return {types[static_cast<size_t>(std::countr_zero(bytes))], bytes};
}

}  // namespace sinter::comm
