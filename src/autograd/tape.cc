#include "autograd/tape.h"

#include "base/error.h"

namespace sinter::autograd {

void Tape::backward() {
  while (!steps_.empty()) {
    std::function<void()> step = std::move(steps_.back());
    steps_.pop_back();
    step();
  }
}

Recompute parse_recompute(const std::string& text) {
  if (text == "none") return Recompute::none;
  if (text == "selective") return Recompute::selective;
  if (text == "full") return Recompute::full;
  base::fail_usage("recompute '{}' is not known; expected none, selective or full", text);
}

const char* recompute_name(Recompute mode) {
  switch (mode) {
    case Recompute::none:
      return "none";
    case Recompute::selective:
      return "selective";
    case Recompute::full:
      return "full";
  }
  return "?";
}

}  // namespace sinter::autograd
