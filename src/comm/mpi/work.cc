#include "comm/mpi/work.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <thread>

#include "base/error.h"
#include "comm/reduce.h"
#include "comm/waiting.h"

namespace sinter::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Reductions up to this size take one move: everyone gets everything and reduces it.
constexpr size_t kSmallBytes = 2048;

// All calls under way. Waiting for one moves all of them on, so that a rank that waits in one group does not hold up
// another group's second moves.
std::vector<MpiWork*>& active() {
  static std::vector<MpiWork*> works;
  return works;
}

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

core::Tensor host_tensor(int64_t n, core::DType dtype) {
  return core::Tensor(core::runtime({}).allocator(), {n}, dtype);
}

// Lets others have the processor: at first only when they want it, after a while for a moment in any case.
void pause(int& idle) {
  if (++idle < 2000) {
    sched_yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace

MpiWork::MpiWork(MpiGroup& group, Call call, const std::string& label, double deadline)
    : group_(group), call_(std::move(call)), what_(describe(call_)), label_(label), deadline_(deadline) {
  ++group_.calls;
  start_first();
  active().push_back(this);
}

MpiWork::~MpiWork() {
  // MPI may still write into the buffers. After an error elsewhere the others may never come: a few seconds must do.
  const auto begin = Clock::now();
  int idle = 0;
  try {
    while (stage_ != Stage::done && stage_ != Stage::failed) {
      if (advance() || (std::uncaught_exceptions() > 0 && seconds_since(begin) > 5)) break;
      pause(idle);
    }
  } catch (const std::exception&) {
    stage_ = Stage::failed;
  }
  std::erase(active(), this);
  std::erase(group_.waiting, this);
}

core::Tensor MpiWork::on_host(const core::Tensor& t, bool is_read) {
  if (!t || t.device().kind == core::DeviceKind::cpu) return t;
  core::DeviceRuntime& device = core::runtime(t.device());
  staging_.push_back(device.allocate_staging(t.bytes()));
  if (is_read) {
    device.copy_to_host(staging_.back().get(), t.raw(), t.bytes(), device.stream());
    device.synchronize(device.stream());
  }
  return core::Tensor::view_of(staging_.back().get(), t.shape(), t.dtype(), {});
}

void MpiWork::start_first() {
  const bool is_root = group_.rank == call_.peer;
  in_ = on_host(call_.input, true);
  const bool in_place = !call_.input && (call_.kind != Collective::broadcast || is_root);
  out_ = on_host(call_.output, in_place && call_.kind != Collective::receive);
  switch (call_.kind) {
    case Collective::barrier:
      return check_mpi(MPI_Ibarrier(group_.first, &request_), what_);
    case Collective::all_reduce:
    case Collective::reduce:
    case Collective::reduce_scatter:
      return start_reduction();
    case Collective::broadcast: {
      const MpiUnit unit = mpi_unit(out_.bytes(), out_.bytes(), what_);
      return check_mpi(MPI_Ibcast(out_.raw(), unit.count(out_.bytes()), unit.type, call_.peer, group_.first, &request_),
                       what_);
    }
    case Collective::all_gather:
    case Collective::gather:
    case Collective::scatter:
      return start_gather_like(call_.kind);
    case Collective::all_to_all:
      return start_exchange();
    case Collective::send: {
      const MpiUnit unit = mpi_unit(in_.bytes(), in_.bytes(), what_);
      return check_mpi(
          MPI_Isend(in_.raw(), unit.count(in_.bytes()), unit.type, call_.peer, call_.tag, group_.first, &request_),
          what_);
    }
    case Collective::receive: {
      const MpiUnit unit = mpi_unit(out_.bytes(), out_.bytes(), what_);
      return check_mpi(
          MPI_Irecv(out_.raw(), unit.count(out_.bytes()), unit.type, call_.peer, call_.tag, group_.first, &request_),
          what_);
    }
  }
}

// One piece of each rank on one side, all of them on the other.
void MpiWork::start_gather_like(Collective kind) {
  const size_t piece = kind == Collective::scatter ? out_.bytes() : in_.bytes();
  const auto size = static_cast<size_t>(group_.size), rank = static_cast<size_t>(group_.rank);
  const MpiUnit unit = mpi_unit(piece * size, piece, what_);
  const int n = unit.count(piece);
  if (kind == Collective::scatter) {
    return check_mpi(
        MPI_Iscatter(in_.raw(), n, unit.type, out_.raw(), n, unit.type, call_.peer, group_.first, &request_), what_);
  }
  const bool has_output = kind == Collective::all_gather || group_.rank == call_.peer;
  const bool is_there = has_output && out_.data<std::byte>() + rank * piece == in_.data<std::byte>();
  const void* from = is_there ? MPI_IN_PLACE : in_.raw();
  if (kind == Collective::gather) {
    return check_mpi(MPI_Igather(from, n, unit.type, out_.raw(), n, unit.type, call_.peer, group_.first, &request_),
                     what_);
  }
  check_mpi(MPI_Iallgather(from, n, unit.type, out_.raw(), n, unit.type, group_.first, &request_), what_);
}

void MpiWork::start_exchange() {
  auto row_bytes = [](const core::Tensor& t) {
    return t.size(0) == 0 ? 1 : t.bytes() / static_cast<size_t>(t.size(0));
  };
  const size_t send_row = row_bytes(in_), receive_row = row_bytes(out_);
  const MpiUnit unit = mpi_unit(std::max(in_.bytes(), out_.bytes()), std::max(send_row, receive_row), what_);
  const auto size = static_cast<size_t>(group_.size);
  counts_.resize(2 * size);
  begins_.resize(2 * size);
  for (size_t side = 0; side < 2; ++side) {
    const std::vector<int64_t>& rows = side == 0 ? call_.send_rows : call_.receive_rows;
    const size_t row = side == 0 ? send_row : receive_row;
    size_t begin = 0;
    for (size_t r = 0; r < size; ++r) {
      const size_t bytes = static_cast<size_t>(rows[r]) * row;
      counts_[side * size + r] = unit.count(bytes);
      begins_[side * size + r] = unit.count(begin);
      begin += bytes;
    }
  }
  check_mpi(MPI_Ialltoallv(in_.raw(), counts_.data(), begins_.data(), unit.type, out_.raw(), counts_.data() + size,
                           begins_.data() + size, unit.type, group_.first, &request_),
            what_);
}

void MpiWork::start_reduction() {
  const auto size = static_cast<size_t>(group_.size), rank = static_cast<size_t>(group_.rank);
  const int64_t ranks = group_.size;
  const size_t element = base::dtype_bytes(out_.dtype());
  if (call_.kind == Collective::reduce_scatter) {
    parts_ = host_tensor(in_.num_elements(), in_.dtype());
    const MpiUnit unit = mpi_unit(in_.bytes(), out_.bytes(), what_);
    const int n = unit.count(out_.bytes());
    return check_mpi(MPI_Ialltoall(in_.raw(), n, unit.type, parts_.raw(), n, unit.type, group_.first, &request_),
                     what_);
  }
  const int64_t n = out_.num_elements();
  if (call_.kind == Collective::all_reduce && out_.bytes() <= kSmallBytes) {
    parts_ = host_tensor(n * ranks, out_.dtype());
    const int bytes = static_cast<int>(out_.bytes());
    return check_mpi(
        MPI_Iallgather(out_.raw(), bytes, MPI_BYTE, parts_.raw(), bytes, MPI_BYTE, group_.first, &request_), what_);
  }
  has_second_ = true;
  group_.waiting.push_back(this);
  for (int64_t r = 0; r < ranks; ++r) {
    begins_.push_back(static_cast<int>(static_cast<size_t>(r * n / ranks) * element));
    counts_.push_back(static_cast<int>(static_cast<size_t>((r + 1) * n / ranks) * element) - begins_.back());
  }
  const int own = counts_[rank];
  parts_ = host_tensor(own / static_cast<int64_t>(element) * ranks, out_.dtype());
  std::vector<int> receive_counts(size, own), receive_begins(size);
  for (size_t r = 0; r < size; ++r) receive_begins[r] = static_cast<int>(r) * own;
  // MPI reads these until the move is done.
  counts_.insert(counts_.end(), receive_counts.begin(), receive_counts.end());
  begins_.insert(begins_.end(), receive_begins.begin(), receive_begins.end());
  check_mpi(MPI_Ialltoallv(out_.raw(), counts_.data(), begins_.data(), MPI_BYTE, parts_.raw(), counts_.data() + size,
                           begins_.data() + size, MPI_BYTE, group_.first, &request_),
            what_);
}

void MpiWork::start_second() {
  const auto rank = static_cast<size_t>(group_.rank);
  const size_t element = base::dtype_bytes(out_.dtype());
  const core::Tensor flat = out_.reshape({out_.num_elements()});
  const core::Tensor own =
      flat.slice(begins_[rank] / static_cast<int64_t>(element), counts_[rank] / static_cast<int64_t>(element));
  reduce_in_rank_order(parts_, own, call_.op);
  if (call_.kind == Collective::all_reduce) {
    check_mpi(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, out_.raw(), counts_.data(), begins_.data(), MPI_BYTE,
                              group_.second, &request_),
              what_);
  } else {
    const void* from = group_.rank == call_.peer ? MPI_IN_PLACE : own.raw();
    check_mpi(MPI_Igatherv(from, counts_[rank], MPI_BYTE, out_.raw(), counts_.data(), begins_.data(), MPI_BYTE,
                           call_.peer, group_.second, &request_),
              what_);
  }
  stage_ = Stage::second;
  group_.waiting.pop_front();
}

bool MpiWork::is_moved() {
  int finished = 0;
  check_mpi(MPI_Test(&request_, &finished, MPI_STATUS_IGNORE), what_);
  return finished != 0;
}

bool MpiWork::progress() {
  if (stage_ == Stage::first) {
    if (!has_second_) {
      if (is_moved()) finish();
    } else {
      while (!group_.waiting.empty() && group_.waiting.front()->is_moved()) group_.waiting.front()->start_second();
    }
  }
  if (stage_ == Stage::second && is_moved()) finish();
  return stage_ == Stage::done;
}

bool MpiWork::advance() {
  try {
    return progress();
  } catch (const std::exception&) {
    stage_ = Stage::failed;
    throw;
  }
}

void MpiWork::wait() {
  const auto begin = Clock::now();
  const struct Meter {
    Clock::time_point begin;
    ~Meter() { add_waited_seconds(seconds_since(begin)); }
  } meter{begin};
  int idle = 0;
  while (!advance()) {
    for (MpiWork* other : active()) {
      if (other != this && other->stage_ != Stage::failed) other->advance();
    }
    pause(idle);
    if (deadline_ > 0 && idle % 64 == 0 && seconds_since(begin) > deadline_) fail_late(seconds_since(begin));
  }
}

void MpiWork::fail_late(double seconds) {
  stage_ = Stage::failed;
  base::fail("{}: {} in '{}' is not done after {:.0f} s (parallel.timeout){}",
             group_.names[static_cast<size_t>(group_.rank)], what_, label_, seconds, group_.ask_around(what_));
}

void MpiWork::finish() {
  if (parts_ && !has_second_) reduce_in_rank_order(parts_, out_, call_.op);
  stage_ = Stage::done;
  parts_ = {};
  if (staging_.empty()) return;
  const bool writes = call_.output && !(call_.kind == Collective::reduce && group_.rank != call_.peer);
  if (writes) {
    core::DeviceRuntime& device = core::runtime(call_.output.device());
    device.copy_to_device(call_.output.raw(), out_.raw(), call_.output.bytes(), device.stream());
    device.synchronize(device.stream());
  }
  staging_.clear();
}

}  // namespace sinter::comm
