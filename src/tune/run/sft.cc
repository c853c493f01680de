// Supervised fine-tuning: samples packed into rows, rows into steps.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/together.h"
#include "data/sample_order.h"
#include "tune/data/embedding_noise.h"
#include "tune/data/pack.h"
#include "tune/run/distillation.h"
#include "tune/run/tune_plan.h"

namespace sinter::tune {
namespace {

// Samples as rows of a fixed number of tokens.
struct Rows {
  std::vector<Sample> samples;
  std::vector<PackedRow> rows;
  int64_t tokens = 0, supervised = 0, too_long = 0;
  int64_t most_samples = 1;  // in a row
  bool has_weights = false;  // other than 0 and 1
};

Rows make_rows(const std::vector<Record>& records, const Renderer& renderer, const spec::TuneRecipe& recipe) {
  const int64_t T = recipe.base.data.sequence_length;
  Rows out;
  int64_t bad = 0, shortest = std::numeric_limits<int64_t>::max();
  std::string first;
  for (const Record& record : records) {
    Sample sample;
    try {
      sample = renderer.sample(record);
    } catch (const base::Error& e) {
      if (bad++ == 0) first = e.what();
      continue;
    }
    shortest = std::min(shortest, sample.tokens.num_tokens());
    if (sample.tokens.num_tokens() > T) {
      ++out.too_long;
      continue;
    }
    out.tokens += sample.tokens.num_tokens();
    out.supervised += sample.tokens.num_supervised();
    for (float weight : sample.tokens.weights) out.has_weights = out.has_weights || (weight != 0.0f && weight != 1.0f);
    out.samples.push_back(std::move(sample));
  }
  if (bad > 0) base::log_warning("{} of {} rows are left out, the first: {}", bad, records.size(), first);
  if (out.too_long > 0)
    base::log_warning("{} of {} samples are longer than data.sequence_length {} and left out", out.too_long,
                      records.size(), T);
  check_any_learned(out.samples.empty(), "sample", first, shortest, recipe);
  std::vector<int64_t> lengths;
  for (const Sample& sample : out.samples) lengths.push_back(sample.tokens.num_tokens());
  out.rows = pack_rows(lengths, T, recipe.tune.packing ? PackStrategy::best_fit : PackStrategy::none);
  for (const PackedRow& row : out.rows) out.most_samples = std::max(out.most_samples, static_cast<int64_t>(row.size()));
  return out;
}

class SampleBatches : public train::BatchSource {
 public:
  SampleBatches(Rows rows, Rows validation, const spec::TuneRecipe& recipe, const EmbeddingNoise& noise,
                const parallel::Mesh& mesh)
      : rows_(std::move(rows)),
        recipe_(recipe),
        noise_(noise),
        rank_(mesh.data().rank()),
        ranks_(mesh.data().size()),
        micro_batches_(micro_batches_of(recipe, mesh)),
        max_sequences_(recipe.base.train.micro_batch * std::max(rows_.most_samples, validation.most_samples) + 1),
        has_weights_(rows_.has_weights || validation.has_weights || !recipe.tune.teacher.empty()),
        schedule_(static_cast<int64_t>(rows_.rows.size()), recipe.base.train.micro_batch, micro_batches_, ranks_),
        order_({static_cast<int64_t>(rows_.rows.size())}, {1.0}, static_cast<uint64_t>(recipe.base.train.seed),
               recipe.base.data.shuffle) {
    read_validation(validation);
  }

  int64_t steps_of_an_epoch() const { return schedule_.steps(); }
  int64_t max_sequences() const { return max_sequences_; }
  int64_t micro_batches() const { return micro_batches_; }
  bool has_weights() const { return has_weights_; }
  const Rows& rows() const { return rows_; }

  std::vector<data::MicroBatch> step(int64_t step) override {
    const int64_t epoch = step / schedule_.steps(), within = step % schedule_.steps();
    const auto count = static_cast<int64_t>(rows_.rows.size());
    std::vector<data::MicroBatch> batches;
    for (int64_t m = 0; m < micro_batches_; ++m) {
      std::vector<int64_t> rows = schedule_.rows(within, m, rank_);
      for (int64_t& row : rows) {
        if (row >= 0) row = order_(epoch * count + row).index;
      }
      TuneBatch batch = make_batch(rows_, rows);
      if (noise_.alpha > 0) add_noise(batch, noise_, step);
      batches.push_back(std::move(batch));
    }
    return batches;
  }
  const std::vector<data::MicroBatch>& validation() const override { return validation_; }
  int64_t tokens_at(int64_t) const override {
    return micro_batches_ * recipe_.base.train.micro_batch * recipe_.base.data.sequence_length * ranks_;
  }

 private:
  TuneBatch make_batch(const Rows& from, const std::vector<int64_t>& rows) const {
    TuneBatchBuilder builder(recipe_.base.train.micro_batch * recipe_.base.data.sequence_length, max_sequences_);
    for (int64_t row : rows) {
      if (row < 0) continue;
      for (const Placement& place : from.rows[static_cast<size_t>(row)])
        builder.add(from.samples[static_cast<size_t>(place.sample)].tokens, place.sample, place.begin, place.end);
    }
    TuneBatch batch = builder.finish();
    if (!has_weights_) batch.weights.clear();
    return batch;
  }

  void read_validation(const Rows& from) {
    const auto count = static_cast<int64_t>(from.rows.size());
    const int64_t B = recipe_.base.train.micro_batch;
    if (count == 0) return;
    const RowSchedule schedule(count, B, 1, ranks_);
    const int64_t steps = std::min(schedule.steps(), std::max<int64_t>(1, recipe_.base.log.eval_batches / ranks_));
    for (int64_t step = 0; step < steps; ++step) validation_.push_back(make_batch(from, schedule.rows(step, 0, rank_)));
  }

  const Rows rows_;
  const spec::TuneRecipe recipe_;
  const EmbeddingNoise noise_;
  const int64_t rank_, ranks_, micro_batches_, max_sequences_;
  const bool has_weights_;
  const RowSchedule schedule_;
  const data::SampleOrder order_;
  std::vector<data::MicroBatch> validation_;
};

}  // namespace

train::RunPlan make_sft_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh) {
  train::RunPlan plan;
  comm::together(mesh.all(), [&] {
    plan = begin_plan(recipe, mesh);
    const RecipeRenderer renderer(*plan.tokenizer, recipe);
    std::vector<Record> records = read_sources(recipe.base.data.sources, recipe);
    std::vector<Record> held_out = read_sources(recipe.base.data.validation, recipe);
    if (recipe.base.data.validation_share > 0) held_out = hold_out(records, recipe.base.data.validation_share);
    Rows rows = make_rows(records, *renderer, recipe), validation;
    if (!held_out.empty()) {
      validation = make_rows(held_out, *renderer, recipe);
      if (plan.recipe.data.validation.empty()) plan.recipe.data.validation = recipe.base.data.sources;
    }
    const EmbeddingNoise noise{recipe.tune.neftune_alpha, plan.model.hidden,
                               static_cast<uint64_t>(recipe.base.train.seed)};
    auto source = std::make_unique<SampleBatches>(std::move(rows), std::move(validation), recipe, noise, mesh);
    const Rows& r = source->rows();
    const int64_t T = recipe.base.data.sequence_length, per_epoch = source->steps_of_an_epoch();
    plan.steps = recipe.base.train.steps > 0 ? recipe.base.train.steps
                 : recipe.base.train.tokens > 0
                     ? (recipe.base.train.tokens + source->tokens_at(0) - 1) / source->tokens_at(0)
                     : std::max<int64_t>(1, std::llround(recipe.tune.epochs * static_cast<double>(per_epoch)));
    plan.data_text = fmt::format(
        "steps      {} of {} rows of {} tokens ({} an epoch)\ndata       {} samples, {} tokens, {:.1f} % of them "
        "learned; {} "
        "rows {:.1f} % full\n",
        base::format_grouped(plan.steps), source->micro_batches() * recipe.base.train.micro_batch * mesh.data().size(),
        T, base::format_grouped(per_epoch), base::format_grouped(static_cast<int64_t>(r.samples.size())),
        base::format_grouped(r.tokens), 100.0 * static_cast<double>(r.supervised) / static_cast<double>(r.tokens),
        base::format_grouped(static_cast<int64_t>(r.rows.size())),
        100.0 * static_cast<double>(r.tokens) / static_cast<double>(static_cast<int64_t>(r.rows.size()) * T));
    const BatchSizes sizes{recipe.base.train.micro_batch * T, source->max_sequences(), source->micro_batches(),
                           source->has_weights() || !recipe.tune.teacher.empty(), noise.alpha > 0};
    plan.source = std::move(source);
    if (!recipe.tune.teacher.empty()) {
      const DistillationOptions options{recipe.tune.teacher, recipe.tune.teacher_top_k, recipe.tune.teacher_weight};
      plan.objective = std::make_shared<Distillation>(options);
      plan.more_memory.push_back({"weights of the teacher", model_bytes(options.teacher, plan)});
      plan.data_text += fmt::format("teacher    {}, {} of its tokens, {:g} of the loss\n", options.teacher,
                                    options.top_k, options.weight);
    }
    end_plan(plan, recipe, mesh, sizes);
  });
  return plan;
}

}  // namespace sinter::tune
