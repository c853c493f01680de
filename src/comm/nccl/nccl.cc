// The communicator over NCCL. Every call is enqueued on a stream of the communicator's own that first waits for the
// device's main stream; wait() makes the main stream wait for it, so the host never does.
#include "comm/nccl.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "core/stream_trace.h"

namespace sinter::comm {
namespace {

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
using Clock = std::chrono::steady_clock;

void check(ncclResult_t result, const std::string& what, ncclComm_t comm = nullptr) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  base::fail("{} failed: {} ({})", what, ncclGetErrorString(result), ncclGetLastError(comm));
}

void check(cudaError_t error, const std::string& what) {
  SINTER_CHECK(error == cudaSuccess, "{} failed: {}", what, cudaGetErrorString(error));
}

// fp8 sums need scales and bf16 copies: NCCL 2.24 reduces them, older ones only move them.
ncclDataType_t type_of(core::DType dtype) {
  using core::DType;
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::f64:
      return ncclFloat64;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      return ncclInt32;
    case DType::i64:
      return ncclInt64;
    case DType::f8e4m3:
    case DType::f8e5m2:
    case DType::u8:
    case DType::i8:
    case DType::boolean:
      return ncclUint8;
    default:
      base::fail("[nccl] {} cannot be sent", base::dtype_name(dtype));
  }
}

ncclRedOp_t op_of(ReduceOp op) { return op == ReduceOp::sum ? ncclSum : op == ReduceOp::min ? ncclMin : ncclMax; }

// A call under way on a GPU: done when `event` is.
struct Pending {
  Pending(std::string text, ncclComm_t group, core::Device on, double limit)
      : what(std::move(text)), comm(group), device(on), deadline(limit), begun(Clock::now()) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), what);
  }
  ~Pending() { cudaEventDestroy(event); }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  bool is_done() const {
    const cudaError_t state = cudaEventQuery(event);
    if (state != cudaErrorNotReady) check(state, what);
    return state != cudaErrorNotReady;
  }
  // Why it will never be done; "" while it may.
  std::string failure() const {
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm, &state) != ncclSuccess || (state != ncclSuccess && state != ncclInProgress))
      return fmt::format("{} failed: {} ({})", what, ncclGetErrorString(state), ncclGetLastError(comm));
    const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
    if (deadline <= 0 || seconds <= deadline) return "";
    return fmt::format("{} is not done after {:.0f} s (parallel.timeout): a rank is gone, or makes other calls", what,
                       seconds);
  }

  const std::string what;  // with rank and group
  const ncclComm_t comm;
  const core::Device device;
  const double deadline;
  const Clock::time_point begun;
  cudaEvent_t event = nullptr;
};

// The host never waits for a call, so a vanished peer would leave it waiting for the device without a word. A thread
// looks after all calls under way and ends the process with a message; the launcher then ends the other ranks.
class Watch {
 public:
  static Watch& get() {
    static Watch* watch = new Watch;  // lives as long as its thread: to the end of the process
    return *watch;
  }
  void add(std::shared_ptr<Pending> call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(std::move(call));
  }
  // A communicator is about to go: its calls are done.
  void forget(ncclComm_t comm) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(calls_, [comm](const auto& call) { return call->comm == comm; });
  }

 private:
  Watch() {
    std::thread([this] { run(); }).detach();
  }
  void run() {
    for (;;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const std::lock_guard<std::mutex> lock(mutex_);
      try {
        std::erase_if(calls_, [](const auto& call) {
          cudaSetDevice(call->device.index);
          if (call->is_done()) return true;
          const std::string failure = call->failure();
          if (!failure.empty()) base::fail("{}", failure);
          return false;
        });
      } catch (const std::exception& e) {
        base::log_error("{}", e.what());
        std::_Exit(1);
      }
    }
  }

  std::mutex mutex_;
  std::vector<std::shared_ptr<Pending>> calls_;
};

// Results are behind an event of the communicator's stream.
class NcclWork : public Work {
 public:
  NcclWork(std::shared_ptr<Pending> call, cudaStream_t stream, cudaStream_t main)
      : call_(std::move(call)), main_(main) {
    check(cudaEventRecord(call_->event, stream), call_->what);
    Watch::get().add(call_);
  }
  bool advance() override { return call_->is_done(); }
  void wait() override { check(cudaStreamWaitEvent(main_, call_->event, 0), call_->what); }

 private:
  std::shared_ptr<Pending> call_;
  cudaStream_t main_;
};

class Nccl : public Communicator {
 public:
  // through: for tensors on the host; may be null.
  Nccl(ncclComm_t comm, core::Device device, Communicator* through, std::unique_ptr<Communicator> owned,
       bool is_alone = false)
      : comm_(comm), device_(device), through_(through), owned_(std::move(owned)), is_alone_(is_alone) {
    check(ncclCommUserRank(comm_, &rank_), "nccl");
    check(ncclCommCount(comm_, &size_), "nccl");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "nccl");
    check(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming), "nccl");
  }
  ~Nccl() override {
    cudaStreamSynchronize(stream_);
    Watch::get().forget(comm_);
    cudaEventDestroy(ready_);
    cudaStreamDestroy(stream_);
    ncclCommDestroy(comm_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* name() const override { return "nccl"; }
  bool is_trivial() const override { return size_ == 1 && !is_alone_; }

 protected:
  std::unique_ptr<Communicator> make_group(int color, int key) override {
    ncclComm_t group = nullptr;
    check(ncclCommSplit(comm_, color, key, &group, nullptr), "split of '" + label() + "'", comm_);
    std::unique_ptr<Communicator> host = through_ ? through_->split(color, key, label()) : nullptr;
    Communicator* host_view = host.get();
    return std::make_unique<Nccl>(group, device_, host_view, std::move(host), is_alone_);
  }

  Handle start(Call call) override {
    if (call.kind == Collective::barrier || call.tensor().device().kind == core::DeviceKind::cpu)
      return through_ ? start_on(*through_, std::move(call)) : start_on_host(std::move(call));
    auto* main = static_cast<cudaStream_t>(core::runtime(device_).stream().native);
    check(cudaEventRecord(ready_, main), describe(call));
    check(cudaStreamWaitEvent(stream_, ready_, 0), describe(call));
    core::Stream own{device_, stream_};
    core::trace_on(collective_name(call.kind), own, [&] { enqueue(call); });
    auto pending = std::make_shared<Pending>(fmt::format("rank {}: {} in '{}'", rank_, describe(call), label()), comm_,
                                             device_, deadline());
    return std::make_unique<NcclWork>(std::move(pending), stream_, main);
  }

 private:
  // Small numbers of the host, through the GPU: there is no other way between these ranks.
  Handle start_on_host(Call call) {
    core::DeviceRuntime& device = core::runtime(device_);
    auto staged = [&](const core::Tensor& t) {
      if (!t) return core::Tensor();
      core::Tensor copy(device.allocator(), t.shape(), t.dtype());
      device.copy_to_device(copy.raw(), t.raw(), t.bytes(), device.stream());
      return copy;
    };
    Call there = call;
    there.input = staged(call.input);
    there.output = staged(call.output);
    if (call.kind == Collective::barrier) {
      there.kind = Collective::all_reduce;
      there.output = core::Tensor(device.allocator(), {1}, core::DType::i32);
    }
    start(there)->wait();
    if (call.output) device.copy_to_host(call.output.raw(), there.output.raw(), call.output.bytes(), device.stream());
    device.synchronize(device.stream());
    return done();
  }

  void enqueue(const Call& call) {
    const core::Tensor& t = call.tensor();
    const ncclDataType_t type = type_of(t.dtype());
    const auto in = static_cast<size_t>(call.input.num_elements()),
               out = static_cast<size_t>(call.output.num_elements());
    const std::string what = describe(call);
    const bool is_reduction = call.kind == Collective::all_reduce || call.kind == Collective::reduce ||
                              call.kind == Collective::reduce_scatter;
    SINTER_CHECK(!is_reduction || !base::is_fp8(t.dtype()), "{}: NCCL does not sum fp8; sum bf16", what);
    switch (call.kind) {
      case Collective::all_reduce:
        return check(ncclAllReduce(t.raw(), t.raw(), out, type, op_of(call.op), comm_, stream_), what, comm_);
      case Collective::reduce:
        return check(ncclReduce(t.raw(), t.raw(), out, type, op_of(call.op), call.peer, comm_, stream_), what, comm_);
      case Collective::broadcast:
        return check(ncclBroadcast(t.raw(), t.raw(), out, type, call.peer, comm_, stream_), what, comm_);
      case Collective::reduce_scatter:
        return check(ncclReduceScatter(call.input.raw(), call.output.raw(), out, type, op_of(call.op), comm_, stream_),
                     what, comm_);
      case Collective::all_gather:
        return check(ncclAllGather(call.input.raw(), call.output.raw(), in, type, comm_, stream_), what, comm_);
      case Collective::send:
        return check(ncclSend(call.input.raw(), in, type, call.peer, comm_, stream_), what, comm_);
      case Collective::receive:
        return check(ncclRecv(call.output.raw(), out, type, call.peer, comm_, stream_), what, comm_);
      default:
        return exchange(call, what);
    }
  }

  // gather, scatter and all-to-all are groups of messages.
  void exchange(const Call& call, const std::string& what) {
    const core::Tensor& t = call.tensor();
    const ncclDataType_t type = type_of(t.dtype());
    const size_t element = base::dtype_bytes(t.dtype());
    auto at = [&](const core::Tensor& tensor, int64_t elements) {
      return tensor.data<std::byte>() + static_cast<size_t>(elements) * element;
    };
    auto send = [&](const core::Tensor& from, int64_t begin, int64_t count, int to) {
      check(ncclSend(at(from, begin), static_cast<size_t>(count), type, to, comm_, stream_), what, comm_);
    };
    auto receive = [&](const core::Tensor& into, int64_t begin, int64_t count, int from) {
      check(ncclRecv(at(into, begin), static_cast<size_t>(count), type, from, comm_, stream_), what, comm_);
    };
    check(ncclGroupStart(), what, comm_);
    const bool is_root = rank_ == call.peer;
    if (call.kind == Collective::gather) {
      const int64_t n = call.input.num_elements();
      send(call.input, 0, n, call.peer);
      for (int r = 0; is_root && r < size_; ++r) receive(call.output, r * n, n, r);
    } else if (call.kind == Collective::scatter) {
      const int64_t n = call.output.num_elements();
      receive(call.output, 0, n, call.peer);
      for (int r = 0; is_root && r < size_; ++r) send(call.input, r * n, n, r);
    } else {
      auto row = [](const core::Tensor& x) { return x.size(0) == 0 ? 0 : x.num_elements() / x.size(0); };
      int64_t sent = 0, received = 0;
      for (size_t r = 0; r < static_cast<size_t>(size_); ++r) {
        const int64_t to = call.send_rows[r] * row(call.input), from = call.receive_rows[r] * row(call.output);
        if (to > 0) send(call.input, sent, to, static_cast<int>(r));
        if (from > 0) receive(call.output, received, from, static_cast<int>(r));
        sent += to;
        received += from;
      }
    }
    check(ncclGroupEnd(), what, comm_);
  }

  ncclComm_t comm_;
  core::Device device_;
  Communicator* through_;
  std::unique_ptr<Communicator> owned_;
  int rank_ = 0, size_ = 1;
  bool is_alone_;  // a run of one rank that asked for NCCL
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;
};

ncclComm_t join(const NcclId& id, int rank, int ranks, core::Device device) {
  check(cudaSetDevice(device.index), "nccl");
  ncclUniqueId unique;
  std::memcpy(&unique, &id, sizeof unique);
  ncclComm_t comm = nullptr;
  check(ncclCommInitRank(&comm, ranks, unique, rank), "joining NCCL");
  return comm;
}

NcclId new_id() {
  ncclUniqueId unique;
  check(ncclGetUniqueId(&unique), "making NCCL's id");
  NcclId id;
  std::memcpy(id.bytes, &unique, sizeof id.bytes);
  return id;
}

}  // namespace

bool has_nccl() { return true; }

std::string gpu_address(core::Device device) {
  char address[32] = {};
  check(cudaDeviceGetPCIBusId(address, sizeof address, device.index), "asking for the GPU's address");
  return address;
}

std::unique_ptr<Communicator> make_nccl(Communicator& through, core::Device device) {
  NcclId id;
  if (through.rank() == 0) id = new_id();
  through.broadcast(std::as_writable_bytes(std::span(id.bytes)), 0);
  return std::make_unique<Nccl>(join(id, through.rank(), through.size(), device), device, &through, nullptr,
                                through.size() == 1);
}

std::unique_ptr<Communicator> make_nccl(const NcclId& id, int rank, int ranks, core::Device device) {
  return std::make_unique<Nccl>(join(id, rank, ranks, device), device, nullptr, nullptr);
}

NcclId share_nccl_id(const std::string& path, int rank, double seconds) {
  NcclId id;
  if (rank == 0) {
    id = new_id();
    base::write_file_atomic(path, std::string_view(id.bytes, sizeof id.bytes));
    return id;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!std::filesystem::exists(path)) {
    SINTER_CHECK(std::chrono::steady_clock::now() < end,
                 "rank {} waited {:.0f} s for NCCL's id in '{}': rank 0 did not write it, or the folder is not shared",
                 rank, seconds, path);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::ifstream file(path, std::ios::binary);
  SINTER_CHECK(file.read(id.bytes, sizeof id.bytes), "'{}' is not an id of NCCL", path);
  return id;
}

}  // namespace sinter::comm
