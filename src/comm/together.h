// Errors that concern all ranks.
#pragma once
#include <functional>

#include "base/error.h"
#include "comm/communicator.h"

namespace sinter::comm {

// An error that every rank of the group has thrown, with the same text: one of them may speak for all.
class JointError : public base::Error {
 public:
  JointError(const std::string& text, bool is_usage) : Error(text), is_usage_(is_usage) {}
  bool is_usage() const { return is_usage_; }  // the command line is wrong, on every rank that failed

 private:
  bool is_usage_;
};

// Runs `work` on every rank; when it throws on any, throws JointError on all. `work` must not talk to other ranks:
// those that failed would not answer. On one rank it is a plain call.
void together(Communicator& comm, const std::function<void()>& work);

// Throws JointError unless all ranks hold the same text. The error says who differs from rank 0, by `explain` of rank
// 0's text and one's own ("optimizer.lr is 2e-3, rank 0 has 1e-3"), called on the ranks that differ.
void check_same(Communicator& comm, const std::string& text,
                const std::function<std::string(const std::string& first, const std::string& own)>& explain);

}  // namespace sinter::comm
