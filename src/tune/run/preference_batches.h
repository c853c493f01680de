// Preference pairs and labelled answers as micro-batches: what DPO, KTO and reward models learn from.
#pragma once
#include <cstdint>
#include <vector>

#include "data/sample_order.h"
#include "train/batch_source.h"
#include "tune/data/pack.h"
#include "tune/data/render.h"
#include "tune/run/preference_objective.h"
#include "tune/run/tune_plan.h"

namespace sinter::tune {

// What stands or falls together in a micro-batch: the two answers of a pair; a labelled answer and the one that does
// not belong to its prompt.
struct Item {
  TokenSegments sequences[2];  // chosen and rejected; the answer and the mismatched one (may be empty)
  int64_t prompt_tokens[2] = {0, 0};
  bool is_desirable = true;
  double margin = 0;
  double reference[2] = {0, 0};
  bool has_reference = false;
  int64_t num_tokens() const { return sequences[0].num_tokens() + sequences[1].num_tokens(); }
};

struct Items {
  std::vector<Item> items;
  std::vector<PackedRow> rows;  // a row is a micro-batch
  int64_t tokens = 0;
  int64_t most_items = 1;  // of a micro-batch
};

struct PreferenceOptions {
  bool is_kto = false;           // labelled answers instead of pairs
  bool needs_reference = false;  // log-probabilities by the model before tuning
  bool learns_prompts = false;   // the chosen answers' prompts need targets
};

class PreferenceBatches : public train::BatchSource {
 public:
  PreferenceBatches(Items items, Items validation, const spec::TuneRecipe& recipe, const parallel::Mesh& mesh,
                    const PreferenceOptions& options);

  int64_t steps_of_an_epoch() const { return schedule_.steps(); }
  int64_t max_sequences() const { return max_sequences_; }
  int64_t micro_batches() const { return micro_batches_; }
  const Items& items() const { return items_; }

  // Takes the reference's log-probabilities of all rows where it is not the model with its adapter off.
  void attach(const models::Transformer& transformer) override;
  std::vector<data::MicroBatch> step(int64_t step) override;
  const std::vector<data::MicroBatch>& validation() const override { return validation_; }
  int64_t tokens_at(int64_t step) const override;

 private:
  TuneBatch lay_out(const Items& from, const PackedRow& row) const;
  void count_row(const Items& from, int64_t row, int64_t& pairs, int64_t& tokens) const;
  data::MicroBatch make_batch(Items& from, int64_t at, int64_t step_pairs, int64_t step_tokens);
  void read_validation();

  Items items_, held_out_;
  const spec::TuneRecipe recipe_;
  const PreferenceOptions options_;
  const int64_t rank_, ranks_, micro_batches_, max_sequences_;
  const RowSchedule schedule_;
  const data::SampleOrder order_;
  std::vector<data::MicroBatch> validation_;
  const models::Transformer* transformer_ = nullptr;
};

// Reads the recipe's rows, makes them the plan's source and sets its steps and what it says of the data.
BatchSizes plan_preferences(train::RunPlan& plan, const spec::TuneRecipe& recipe, const parallel::Mesh& mesh,
                            const PreferenceOptions& options);

}  // namespace sinter::tune
