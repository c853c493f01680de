// Collectives over MPI. Data moves by MPI's own collectives; sums of floats are taken here, in the order of the ranks,
// because MPI leaves the order to the implementation.
#include <mpi.h>

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace sinter::comm {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  int rank = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  base::fail("[{}] rank {}: {}", call, rank, std::string(text, static_cast<size_t>(length)));
}

// Counts of MPI calls are ints; larger buffers go in pieces of this many elements a rank.
constexpr size_t kMaxPiece = size_t{1} << 28;

MPI_Datatype type_of(double) { return MPI_DOUBLE; }
MPI_Datatype type_of(int64_t) { return MPI_INT64_T; }
MPI_Datatype type_of(float) { return MPI_FLOAT; }

template <class T>
T combine(T a, T b, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return a + b;
    case ReduceOp::min:
      return std::min(a, b);
    case ReduceOp::max:
      return std::max(a, b);
  }
  return a;
}

class SumRequest;

// MPI matches collectives by the order of the calls on a communicator. The two moves of a sum therefore have one
// communicator each, and the second moves start in the order of the sums whichever first move ends sooner.
struct SumLine {
  MPI_Comm exchange = MPI_COMM_NULL, gather = MPI_COMM_NULL;
  int rank = 0, size = 1;
  std::deque<SumRequest*> waiting;  // sums whose second move has not started
};

// An all-reduce in three moves: everyone sends piece r to rank r, rank r adds its pieces in the order of the ranks (in
// double), and the sums go round. Bytes sent are those of a ring, 2 (N - 1) / N of the buffer.
class SumRequest : public Request {
 public:
  SumRequest(SumLine& line, std::span<float> values) : line_(line), values_(values) {
    const auto size = static_cast<size_t>(line.size);
    for (size_t r = 0; r < size; ++r) {
      begins_.push_back(static_cast<int>(r * values.size() / size));
      counts_.push_back(static_cast<int>((r + 1) * values.size() / size) - begins_.back());
    }
    const int own = counts_[static_cast<size_t>(line.rank)];
    received_.resize(static_cast<size_t>(own) * size);
    receive_counts_.assign(size, own);
    for (int r = 0; r < line.size; ++r) receive_begins_.push_back(r * own);
    check(MPI_Ialltoallv(values.data(), counts_.data(), begins_.data(), MPI_FLOAT, received_.data(),
                         receive_counts_.data(), receive_begins_.data(), MPI_FLOAT, line.exchange, &request_),
          "all_reduce");
    line.waiting.push_back(this);
  }
  ~SumRequest() override {
    if (stage_ != Stage::done) wait();
  }
  bool advance() override {
    if (stage_ == Stage::exchange) {
      while (!line_.waiting.empty() && line_.waiting.front()->is_moved()) line_.waiting.front()->start_gather();
    }
    if (stage_ == Stage::gather && is_moved()) finish();
    return stage_ == Stage::done;
  }
  void wait() override {
    while (stage_ == Stage::exchange) {
      SumRequest* first = line_.waiting.front();
      check(MPI_Wait(&first->request_, MPI_STATUS_IGNORE), "all_reduce");
      first->start_gather();
    }
    if (stage_ == Stage::gather) {
      check(MPI_Wait(&request_, MPI_STATUS_IGNORE), "all_reduce");
      finish();
    }
  }

 private:
  enum class Stage { exchange, gather, done };
  bool is_moved() {
    int finished = 0;
    check(MPI_Test(&request_, &finished, MPI_STATUS_IGNORE), "all_reduce");
    return finished != 0;
  }
  void start_gather() {
    const auto rank = static_cast<size_t>(line_.rank), size = static_cast<size_t>(line_.size);
    const auto count = static_cast<size_t>(counts_[rank]);
    float* own = values_.data() + begins_[rank];
    for (size_t i = 0; i < count; ++i) {
      double sum = 0;
      for (size_t r = 0; r < size; ++r) sum += received_[r * count + i];
      own[i] = static_cast<float>(sum);
    }
    check(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, values_.data(), counts_.data(), begins_.data(), MPI_FLOAT,
                          line_.gather, &request_),
          "all_reduce");
    stage_ = Stage::gather;
    line_.waiting.pop_front();
  }
  void finish() {
    stage_ = Stage::done;
    received_ = {};
  }

  SumLine& line_;
  std::span<float> values_;
  std::vector<int> counts_, begins_, receive_counts_, receive_begins_;
  std::vector<float> received_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  Stage stage_ = Stage::exchange;
};

// Several requests in a row that count as one.
class SeriesRequest : public Request {
 public:
  std::vector<std::unique_ptr<Request>> parts;
  bool advance() override {
    bool done = true;
    for (auto& part : parts) done = part->advance() && done;
    return done;
  }
  void wait() override {
    for (auto& part : parts) part->wait();
  }
};

class Mpi : public Communicator {
 public:
  Mpi() {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "init");
    SINTER_CHECK(provided >= MPI_THREAD_FUNNELED, "this MPI does not allow a program with threads");
    for (MPI_Comm* comm : {&comm_, &line_.exchange, &line_.gather}) {
      check(MPI_Comm_dup(MPI_COMM_WORLD, comm), "init");
      MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN);
    }
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    line_.rank = rank_;
    line_.size = size_;
  }
  ~Mpi() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized) return;
    for (MPI_Comm* comm : {&comm_, &line_.exchange, &line_.gather}) MPI_Comm_free(comm);
    MPI_Finalize();
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* name() const override { return "mpi"; }
  void barrier() override { check(MPI_Barrier(comm_), "barrier"); }

  void all_reduce(std::span<float> values, ReduceOp op) override {
    if (op == ReduceOp::sum) {
      start_all_reduce(values)->wait();
    } else {
      reduce_small(values, op);
    }
  }
  void all_reduce(std::span<double> values, ReduceOp op) override { reduce_small(values, op); }
  void all_reduce(std::span<int64_t> values, ReduceOp op) override { reduce_small(values, op); }

  std::unique_ptr<Request> start_all_reduce(std::span<float> values) override {
    if (values.size() <= kMaxPiece) return std::make_unique<SumRequest>(line_, values);
    auto series = std::make_unique<SeriesRequest>();
    for (size_t begin = 0; begin < values.size(); begin += kMaxPiece) {
      series->parts.push_back(
          std::make_unique<SumRequest>(line_, values.subspan(begin, std::min(kMaxPiece, values.size() - begin))));
    }
    return series;
  }

  void broadcast(std::span<std::byte> bytes, int root) override {
    for (size_t begin = 0; begin < bytes.size(); begin += kMaxPiece) {
      const size_t count = std::min(kMaxPiece, bytes.size() - begin);
      check(MPI_Bcast(bytes.data() + begin, static_cast<int>(count), MPI_BYTE, root, comm_), "broadcast");
    }
  }

  void reduce_scatter(std::span<const float> input, std::span<float> output) override {
    assert(input.size() == output.size() * static_cast<size_t>(size_));
    check_count(output.size(), "reduce_scatter");
    const size_t count = output.size();
    std::vector<float> received(input.size());
    check(MPI_Alltoall(input.data(), static_cast<int>(count), MPI_FLOAT, received.data(), static_cast<int>(count),
                       MPI_FLOAT, comm_),
          "reduce_scatter");
    for (size_t i = 0; i < count; ++i) {
      double sum = 0;
      for (size_t r = 0; r < static_cast<size_t>(size_); ++r) sum += received[r * count + i];
      output[i] = static_cast<float>(sum);
    }
  }

  void all_gather(std::span<const std::byte> input, std::span<std::byte> output) override {
    assert(output.size() == input.size() * static_cast<size_t>(size_));
    check_count(input.size(), "all_gather");
    check(MPI_Allgather(input.data(), static_cast<int>(input.size()), MPI_BYTE, output.data(),
                        static_cast<int>(input.size()), MPI_BYTE, comm_),
          "all_gather");
  }

 private:
  static void check_count(size_t count, const char* call) {
    SINTER_CHECK(count <= kMaxPiece, "[{}] {} elements a rank; at most {} in one call", call, count, kMaxPiece);
  }
  // A handful of numbers: everyone gets all of them and combines them in the order of the ranks.
  template <class T>
  void reduce_small(std::span<T> values, ReduceOp op) {
    check_count(values.size(), "all_reduce");
    std::vector<T> all(values.size() * static_cast<size_t>(size_));
    check(MPI_Allgather(values.data(), static_cast<int>(values.size()), type_of(T{}), all.data(),
                        static_cast<int>(values.size()), type_of(T{}), comm_),
          "all_reduce");
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = all[i];
      for (size_t r = 1; r < static_cast<size_t>(size_); ++r)
        values[i] = combine(values[i], all[r * values.size() + i], op);
    }
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  SumLine line_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi() { return std::make_unique<Mpi>(); }
bool has_mpi() { return true; }

void abort_all(int status) {
  int initialized = 0, finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized && !finalized) MPI_Abort(MPI_COMM_WORLD, status);
}

}  // namespace sinter::comm
