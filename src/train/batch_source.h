// Where a run's micro-batches come from: token shards (shard_batches), conversations, or a model's own answers.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "data/loader.h"
#include "models/transformer.h"

namespace sinter::train {

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // The micro-batches of this rank in `step` (from 0): at least one, all of the run's fixed sizes. A function of the
  // step and of the weights as they stand when it is asked for, so that a resumed run reads on exactly where it
  // stopped. Called for one step after the other; what the step before enqueued may still be running.
  virtual std::vector<data::MicroBatch> step(int64_t step) = 0;
  // This rank's part of the validation data, the same every time; empty when there is none.
  virtual const std::vector<data::MicroBatch>& validation() const = 0;
  // Tokens that count as seen in a step, over all ranks.
  virtual int64_t tokens_at(int64_t step) const = 0;

  // The model that is trained; before the first step. It lives as long as steps are asked for.
  virtual void attach(const models::Transformer&) {}

  // What the next steps depend on besides weights and the step's number, as text for checkpoints.
  virtual std::string state() const { return ""; }
  virtual void set_state(const std::string&) {}
};

// Batches of token shards. Keeps references to both.
class ShardBatches : public BatchSource {
 public:
  ShardBatches(data::Loader& loader, const data::BatchSchedule& schedule, int64_t window)
      : loader_(loader), schedule_(schedule), window_(window) {}
  std::vector<data::MicroBatch> step(int64_t step) override { return loader_.step(step); }
  const std::vector<data::MicroBatch>& validation() const override { return loader_.validation(); }
  int64_t tokens_at(int64_t step) const override { return schedule_.sequences_at(step) * window_; }

 private:
  data::Loader& loader_;
  const data::BatchSchedule& schedule_;
  const int64_t window_;
};

}  // namespace sinter::train
