// Which transport carries the tensors of GPU ranks.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/log.h"
#include "comm/nccl.h"
#include "comm/together.h"

namespace sinter::comm {
namespace {

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

std::unique_ptr<Communicator> make_device_group(Communicator& through, core::Device device) {
  const char* wanted = std::getenv("SINTER_NCCL");  // 1: a single rank too
  if (through.size() == 1 && device.kind == core::DeviceKind::cuda && wanted && std::string_view(wanted) == "1")
    return make_nccl(through, device);
  if (through.size() == 1 || device.kind != core::DeviceKind::cuda || std::string(through.name()) == "nccl")
    return nullptr;
  const bool is_first = through.rank() == 0;
  // Ranks of programs that were built apart must not take different ways.
  if (through.sum(int64_t{has_nccl() ? 1 : 0}) < through.size()) {
    if (is_first)
      base::log_warning("tensors go between GPUs through the hosts' memory: this sinter was built without NCCL");
    return nullptr;
  }
  std::string own;
  together(through, [&] { own = host_name() + " " + gpu_address(device); });
  std::vector<std::string> places = through.gather_texts(own);
  std::sort(places.begin(), places.end());
  const auto shared = std::adjacent_find(places.begin(), places.end());
  if (shared != places.end()) {
    if (is_first)
      base::log_info("tensors go between ranks through the hosts' memory: several ranks share the GPU {}", *shared);
    return nullptr;
  }
  std::unique_ptr<Communicator> group = make_nccl(through, device);
  group->set_deadline(through.deadline());
  if (is_first) base::log_info("tensors go between the {} GPUs by NCCL", through.size());
  return group;
}

}  // namespace sinter::comm
