// In the place of comm/nccl/ where NCCL was not found or CUDA is not built.
#include "base/error.h"
#include "comm/nccl.h"

namespace sinter::comm {
namespace {

[[noreturn]] void fail_absent() {
  base::fail("this sinter was built without NCCL; build it with `make cuda` where NCCL is found, or use CPU ranks");
}

}  // namespace

bool has_nccl() { return false; }
std::unique_ptr<Communicator> make_nccl(Communicator&, core::Device) { fail_absent(); }
std::string gpu_address(core::Device) { fail_absent(); }
NcclId share_nccl_id(const std::string&, int, double) { fail_absent(); }
std::unique_ptr<Communicator> make_nccl(const NcclId&, int, int, core::Device) { fail_absent(); }

}  // namespace sinter::comm
