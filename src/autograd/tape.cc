#include "autograd/tape.h"

namespace sinter::autograd {

void Tape::backward() {
  while (!steps_.empty()) {
    std::function<void()> step = std::move(steps_.back());
    steps_.pop_back();
    step();
  }
}

void Tape::later(std::function<void()> work) {
  if (splits_weights_) {
    weights_.push_back(std::move(work));
  } else {
    work();
  }
}

void Tape::backward_weights() {
  for (std::function<void()>& work : weights_) {
    work();
    work = nullptr;
  }
  weights_.clear();
}

}  // namespace sinter::autograd
