// The communicator over NCCL. Every call is enqueued on a stream of the communicator's own that first waits for the
// device's main stream; wait() makes the main stream wait for it, so the host never does.
#include "comm/nccl.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <utility>

#include "base/error.h"

namespace sinter::comm {
namespace {

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));

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

// A call whose results are behind an event of the communicator's stream.
class NcclWork : public Work {
 public:
  NcclWork(cudaStream_t stream, cudaStream_t main, std::string what, ncclComm_t comm, double deadline)
      : main_(main),
        what_(std::move(what)),
        comm_(comm),
        deadline_(deadline),
        begun_(std::chrono::steady_clock::now()) {
    check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), what_);
    check(cudaEventRecord(done_, stream), what_);
  }
  ~NcclWork() override { cudaEventDestroy(done_); }
  bool advance() override {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &state), what_, comm_);
    check(state, what_, comm_);
    const cudaError_t error = cudaEventQuery(done_);
    if (error == cudaErrorNotReady) {
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun_).count();
      if (deadline_ > 0 && seconds > deadline_) {
        ncclCommAbort(comm_);
        base::fail("{} is not done after {:.0f} s (parallel.timeout)", what_, seconds);
      }
      return false;
    }
    check(error, what_);
    return true;
  }
  void wait() override { check(cudaStreamWaitEvent(main_, done_, 0), what_); }

 private:
  cudaStream_t main_;
  std::string what_;
  ncclComm_t comm_;
  double deadline_;
  std::chrono::steady_clock::time_point begun_;
  cudaEvent_t done_ = nullptr;
};

class Nccl : public Communicator {
 public:
  // through: for tensors on the host; may be null.
  Nccl(ncclComm_t comm, core::Device device, Communicator* through, std::unique_ptr<Communicator> owned)
      : comm_(comm), device_(device), through_(through), owned_(std::move(owned)) {
    check(ncclCommUserRank(comm_, &rank_), "nccl");
    check(ncclCommCount(comm_, &size_), "nccl");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "nccl");
    check(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming), "nccl");
  }
  ~Nccl() override {
    cudaEventDestroy(ready_);
    cudaStreamDestroy(stream_);
    ncclCommDestroy(comm_);
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const char* name() const override { return "nccl"; }

 protected:
  std::unique_ptr<Communicator> make_group(int color, int key) override {
    ncclComm_t group = nullptr;
    check(ncclCommSplit(comm_, color, key, &group, nullptr), "split of '" + label() + "'", comm_);
    std::unique_ptr<Communicator> host = through_ ? through_->split(color, key, label()) : nullptr;
    Communicator* host_view = host.get();
    return std::make_unique<Nccl>(group, device_, host_view, std::move(host));
  }

  Handle start(Call call) override {
    if (call.kind == Collective::barrier || call.tensor().device().kind == core::DeviceKind::cpu)
      return start_on_host(std::move(call));
    auto* main = static_cast<cudaStream_t>(core::runtime(device_).stream().native);
    check(cudaEventRecord(ready_, main), describe(call));
    check(cudaStreamWaitEvent(stream_, ready_, 0), describe(call));
    enqueue(call);
    return std::make_unique<NcclWork>(stream_, main, describe(call) + " in '" + label() + "'", comm_, deadline());
  }

 private:
  // Small numbers of the host, through the GPU where there is nothing else.
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

std::unique_ptr<Communicator> make_nccl(Communicator& through, core::Device device) {
  NcclId id;
  if (through.rank() == 0) id = new_id();
  through.broadcast(std::as_writable_bytes(std::span(id.bytes)), 0);
  return std::make_unique<Nccl>(join(id, through.rank(), through.size(), device), device, &through, nullptr);
}

std::unique_ptr<Communicator> make_nccl(const NcclId& id, int rank, int ranks, core::Device device) {
  return std::make_unique<Nccl>(join(id, rank, ranks, device), device, nullptr, nullptr);
}

NcclId share_nccl_id(const std::string& path, int rank, double seconds) {
  NcclId id;
  if (rank == 0) {
    id = new_id();
    const std::string temporary = path + ".tmp";
    std::ofstream(temporary, std::ios::binary).write(id.bytes, sizeof id.bytes);
    std::filesystem::rename(temporary, path);
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
