// Limits on what compiling a grammar may take. Schemas, patterns and grammars come from clients: whatever they hold,
// compiling ends soon with a grammar or with an error.
#pragma once
#include <chrono>
#include <cstdint>

#include "base/error.h"

namespace sinter::engine::grammar {

struct GrammarLimits {
  int64_t max_source_bytes = 256 * 1024;
  int64_t max_nodes = 200000;   // of the automata
  int64_t max_nesting = 64;     // of schemas, groups, rules
  double max_seconds = 2.0;     // to compile
  int64_t max_stack = 256;      // nested rules while matching: how deep output may nest
  int64_t max_states = 200000;  // of the automaton that is made while matching
  int64_t max_mask_bytes = int64_t{64} << 20;
};

// Counts nodes and watches the clock; throws base::Error naming the limit.
class Budget {
 public:
  explicit Budget(const GrammarLimits& limits) : limits_(limits), start_(std::chrono::steady_clock::now()) {}
  const GrammarLimits& limits() const { return limits_; }
  void spend(int64_t nodes = 1) {
    spent_ += nodes;
    SINTER_CHECK(spent_ <= limits_.max_nodes, "too large: it needs more than {} states", limits_.max_nodes);
    if ((++calls_ & 255) == 0) check_time();
  }
  void check_time() const {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    SINTER_CHECK(seconds <= limits_.max_seconds, "too complex: not compiled within {} s", limits_.max_seconds);
  }
  void check_nesting(int64_t depth) const {
    SINTER_CHECK(depth <= limits_.max_nesting, "nested deeper than {} levels", limits_.max_nesting);
  }

 private:
  GrammarLimits limits_;
  std::chrono::steady_clock::time_point start_;
  int64_t spent_ = 0, calls_ = 0;
};

}  // namespace sinter::engine::grammar
