// A run of one rank: every collective is the identity.
#include <cassert>
#include <cstring>

#include "comm/communicator.h"

namespace sinter::comm {
namespace {

struct Done : Request {
  bool advance() override { return true; }
  void wait() override {}
};

class Self : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  const char* name() const override { return "self"; }
  void barrier() override {}
  void all_reduce(std::span<float>, ReduceOp) override {}
  void all_reduce(std::span<double>, ReduceOp) override {}
  void all_reduce(std::span<int64_t>, ReduceOp) override {}
  std::unique_ptr<Request> start_all_reduce(std::span<float>) override { return std::make_unique<Done>(); }
  void broadcast(std::span<std::byte>, int) override {}
  void reduce_scatter(std::span<const float> input, std::span<float> output) override {
    assert(input.size() == output.size());
    std::memmove(output.data(), input.data(), input.size_bytes());
  }
  void all_gather(std::span<const std::byte> input, std::span<std::byte> output) override {
    assert(input.size() == output.size());
    std::memmove(output.data(), input.data(), input.size());
  }
};

}  // namespace

std::unique_ptr<Communicator> make_self() { return std::make_unique<Self>(); }

}  // namespace sinter::comm
