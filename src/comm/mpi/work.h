// A call under way over MPI.
#pragma once
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/mpi/group.h"

namespace sinter::comm {

// Data moves by MPI's own non-blocking collectives. Reductions are taken here, in the order of the ranks, because MPI
// leaves the order to the implementation: everyone sends piece r to rank r (first move), rank r reduces its pieces, and
// the results go round (second move). Bytes sent are those of a ring, 2 (N - 1) / N of the buffer.
//
// Tensors of a device are staged through pinned host memory: copied at the start, and back when the call is done.
class MpiWork : public Work {
 public:
  MpiWork(MpiGroup& group, Call call, const std::string& label, double deadline);
  ~MpiWork() override;
  bool advance() override;
  void wait() override;

 private:
  enum class Stage : uint8_t { first, second, done, failed };
  // A tensor as MPI sees it: itself on the host, or a pinned copy.
  core::Tensor on_host(const core::Tensor& t, bool is_read);
  void start_first();
  void start_gather_like(Collective kind);
  void start_exchange();
  void start_reduction();
  void start_second();  // of all_reduce and reduce
  bool is_moved();
  bool progress();
  void finish();
  void fail_late(double seconds);

  MpiGroup& group_;
  Call call_;
  std::string what_, label_;
  double deadline_;
  Stage stage_ = Stage::first;
  bool has_second_ = false;
  core::Tensor in_, out_;  // on the host
  core::Tensor parts_;     // (ranks, own share): what the ranks sent to be reduced here
  std::vector<int> counts_, begins_;
  std::vector<std::shared_ptr<std::byte[]>> staging_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace sinter::comm
