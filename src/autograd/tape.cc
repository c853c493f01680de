#include "autograd/tape.h"

namespace sinter::autograd {

void Tape::backward() {
  while (!steps_.empty()) {
    std::function<void()> step = std::move(steps_.back());
    steps_.pop_back();
    step();
  }
}

}  // namespace sinter::autograd
