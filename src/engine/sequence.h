// One choice of a request while the engine works on it. Internal to the engine.
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "engine/block_pool.h"
#include "engine/request.h"
#include "engine/text_stream.h"

namespace sinter::engine {

struct Sequence;

// What the choices of a request share.
struct RequestState {
  RequestId id = 0;
  Request request;
  Clock::time_point submitted;
  std::vector<Sequence*> sequences;  // alive
  int32_t num_choices = 1;           // n, or best_of
  std::vector<Output> finished;      // with best_of: held back until all have ended
  std::vector<double> means;         // of their log-probabilities
};

enum class SequenceState : uint8_t { waiting, running, finished };

struct Sequence {
  std::shared_ptr<RequestState> owner;
  int32_t choice = 0;
  uint64_t number = 0;  // order of arrival
  SequenceState state = SequenceState::waiting;
  std::vector<int32_t> tokens;  // prompt, then output
  int64_t prompt_length = 0;
  int64_t num_computed = 0;  // tokens whose keys are in the cache
  int64_t num_named = 0;     // full blocks that were named
  int64_t num_dropped = 0;   // blocks released behind the window; their entries in `blocks` hold -1
  std::vector<int32_t> blocks;
  std::vector<BlockHash> hashes;  // of full blocks, as far as they were needed
  int64_t next_prompt_score = 0;  // first prompt token whose log-probability is still to come; prompt_length: none
  int64_t most_computed = 0;      // before preemptions: what comes again is recomputation
  int64_t num_scheduled = 0;      // tokens in the step that is being prepared
  // Of the step under way, while the next one is prepared:
  int64_t num_pending = 0;   // 1: it chooses a token that will stand behind `tokens`
  int32_t pending_row = -1;  // which of its choices that is
  bool is_ending = false;    // it chooses the last token: the sequence takes part in no further step
  SamplingOptions sampling;  // the request's, with this choice's seed
  std::shared_ptr<TokenMask> mask;
  std::optional<TextStop> text_stop;
  bool has_begun = false, has_token = false, has_left_queue = false;
  Clock::time_point begun, first_token;
  Usage usage;
  double logprob_sum = 0;  // for best_of
  Output event;            // what the step under way has for whoever asked
  bool has_event = false;

  const Request& request() const { return owner->request; }
  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
  int64_t extent() const { return length() + num_pending; }
  int64_t num_new() const { return length() - prompt_length; }
  bool is_decoding() const { return num_computed >= prompt_length; }
};

// Whether the next token is the last one, whichever it is.
bool ends_next(const Sequence& sequence);
// Whether the choice of a token depends on those before it beyond what the model says: masks, penalties, bad words.
bool needs_own_tokens(const Sequence& sequence);

// Who goes first: lower priority value, then order of arrival.
struct GoesFirst {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->request().priority != b->request().priority) return a->request().priority < b->request().priority;
    return a->number < b->number;
  }
};

}  // namespace sinter::engine
