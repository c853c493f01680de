#include "tune/run/preference_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "tune/run/log_probs.h"

namespace sinter::tune {
namespace {

// Each prompt with the answer of the row before it, as the estimate of the KL divergence wants them.
void add_mismatched(std::vector<Item>& items, int64_t T, int64_t most) {
  if (items.size() < 2) return;
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& other = items[(i + items.size() - 1) % items.size()];
    const TokenSegments &own = items[i].sequences[0], &from = other.sequences[0];
    const auto prompt = static_cast<size_t>(items[i].prompt_tokens[0]),
               begin = static_cast<size_t>(other.prompt_tokens[0]);
    const auto mixed_tokens = static_cast<int64_t>(prompt + from.ids.size() - begin);
    if (mixed_tokens > T || own.num_tokens() + mixed_tokens > most) continue;
    TokenSegments& mixed = items[i].sequences[1];
    mixed.append({own.ids.begin(), own.ids.begin() + static_cast<ptrdiff_t>(prompt)}, Role::prompt, 0);
    mixed.append({from.ids.begin() + static_cast<ptrdiff_t>(begin), from.ids.end()}, Role::completion, 1);
    items[i].prompt_tokens[1] = items[i].prompt_tokens[0];
  }
}

Items make_items(const std::vector<Record>& records, const Renderer& renderer, const spec::TuneRecipe& recipe,
                 const PreferenceOptions& options) {
  const int64_t T = recipe.base.data.sequence_length, most = recipe.base.train.micro_batch * T;
  Items out;
  int64_t bad = 0, too_long = 0, shortest = std::numeric_limits<int64_t>::max();
  std::string first;
  for (const Record& record : records) {
    Item item;
    try {
      if (options.is_kto) {
        LabelledSample sample = renderer.labelled(record);
        item.sequences[0] = std::move(sample.tokens);
        item.prompt_tokens[0] = sample.prompt_tokens;
        item.is_desirable = sample.is_desirable;
      } else {
        PreferencePair pair = renderer.pair(record);
        item.sequences[0] = std::move(pair.chosen);
        item.sequences[1] = std::move(pair.rejected);
        item.prompt_tokens[0] = item.prompt_tokens[1] = pair.prompt_tokens;
        item.margin = pair.margin;
      }
    } catch (const base::Error& e) {
      if (bad++ == 0) first = e.what();
      continue;
    }
    shortest = std::min(shortest, std::max(item.sequences[0].num_tokens(), item.sequences[1].num_tokens()));
    const bool is_long = item.sequences[0].num_tokens() > T || item.sequences[1].num_tokens() > T;
    if (is_long || item.num_tokens() > most) {
      ++too_long;
      continue;
    }
    // Its likelihood is learned over the prompt too: there have to be targets.
    if (options.learns_prompts) std::fill(item.sequences[0].weights.begin(), item.sequences[0].weights.end(), 1.0f);
    out.items.push_back(std::move(item));
  }
  if (options.is_kto) add_mismatched(out.items, T, most);
  if (bad > 0) base::log_warning("{} of {} rows are left out, the first: {}", bad, records.size(), first);
  if (too_long > 0)
    base::log_warning(
        "{} of {} rows have an answer over data.sequence_length {} or do not fit into a micro-batch of "
        "{} tokens, and are left out",
        too_long, records.size(), T, most);
  check_any_learned(out.items.empty(), "row", first, shortest, recipe);
  std::vector<int64_t> lengths;
  for (const Item& item : out.items) {
    lengths.push_back(item.num_tokens());
    out.tokens += item.num_tokens();
  }
  out.rows = pack_rows(lengths, most, PackStrategy::best_fit);
  for (const PackedRow& row : out.rows) out.most_items = std::max(out.most_items, static_cast<int64_t>(row.size()));
  return out;
}

// Targets of a sequence's answer, where it was laid out: a target stands one place before its token.
AnswerSpan span_of(const TuneBatch& batch, size_t sequence, int64_t prompt_tokens) {
  const int64_t begin = batch.offsets[sequence], end = batch.offsets[sequence + 1];
  const int64_t first = begin + std::max<int64_t>(prompt_tokens, 1) - 1;
  return {.first = first, .count = end - 1 - first, .prompt_first = begin, .reference = 0};
}

template <class Visit>
void visit_spans(const Items& from, const PackedRow& row, const TuneBatch& batch, Visit visit) {
  size_t sequence = 0;
  for (const Placement& place : row) {
    const Item& item = from.items[static_cast<size_t>(place.sample)];
    for (size_t k = 0; k < 2; ++k) {
      if (item.sequences[k].num_tokens() > 0)
        visit(static_cast<size_t>(place.sample), k, span_of(batch, sequence++, item.prompt_tokens[k]));
    }
  }
}

void keep(Items& to, const PackedRow& row, const TuneBatch& batch, const std::vector<float>& logprobs) {
  visit_spans(to, row, batch, [&](size_t i, size_t k, const AnswerSpan& span) {
    double sum = 0;
    for (int64_t t = span.first; t < span.first + span.count; ++t) sum += logprobs[static_cast<size_t>(t)];
    to.items[i].reference[k] = sum;
    to.items[i].has_reference = true;
  });
}

}  // namespace

PreferenceBatches::PreferenceBatches(Items items, Items validation, const spec::TuneRecipe& recipe,
                                     const parallel::Mesh& mesh, const PreferenceOptions& options)
    : items_(std::move(items)),
      held_out_(std::move(validation)),
      recipe_(recipe),
      options_(options),
      rank_(mesh.data().rank()),
      ranks_(mesh.data().size()),
      micro_batches_(micro_batches_of(recipe, mesh)),
      max_sequences_(2 * std::max(items_.most_items, held_out_.most_items) + 1),
      schedule_(static_cast<int64_t>(items_.rows.size()), 1, micro_batches_, ranks_),
      order_({static_cast<int64_t>(items_.rows.size())}, {1.0}, static_cast<uint64_t>(recipe.base.train.seed),
             recipe.base.data.shuffle) {}

void PreferenceBatches::attach(const models::Transformer& transformer) {
  transformer_ = &transformer;
  if (options_.needs_reference && !has_adapter_reference(recipe_)) {
    const models::OpenModel reference = open_reference(recipe_, transformer);
    for (Items* all : {&items_, &held_out_}) {
      for (const PackedRow& row : all->rows) {
        const TuneBatch batch = lay_out(*all, row);
        keep(*all, row, batch, token_logprobs(*reference.transformer, batch));
      }
    }
  }
  read_validation();
}

std::vector<data::MicroBatch> PreferenceBatches::step(int64_t step) {
  const int64_t epoch = step / schedule_.steps(), within = step % schedule_.steps();
  const auto count = static_cast<int64_t>(items_.rows.size());
  auto row_at = [&](int64_t at) { return at < 0 ? at : order_(epoch * count + at).index; };
  // What the whole step holds, on every rank, so that its likelihood is one mean.
  int64_t step_pairs = 0, step_tokens = 0;
  std::vector<data::MicroBatch> batches;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    for (int64_t m = 0; m < micro_batches_; ++m) {
      for (int64_t at : schedule_.rows(within, m, rank)) count_row(items_, row_at(at), step_pairs, step_tokens);
    }
  }
  for (int64_t m = 0; m < micro_batches_; ++m)
    batches.push_back(make_batch(items_, row_at(schedule_.rows(within, m, rank_)[0]), step_pairs, step_tokens));
  return batches;
}

int64_t PreferenceBatches::tokens_at(int64_t) const {
  return micro_batches_ * recipe_.base.train.micro_batch * recipe_.base.data.sequence_length * ranks_;
}

TuneBatch PreferenceBatches::lay_out(const Items& from, const PackedRow& row) const {
  TuneBatchBuilder builder(recipe_.base.train.micro_batch * recipe_.base.data.sequence_length, max_sequences_);
  for (const Placement& place : row) {
    const Item& item = from.items[static_cast<size_t>(place.sample)];
    for (const TokenSegments& sequence : item.sequences) {
      if (sequence.num_tokens() > 0) builder.add(sequence, place.sample);
    }
  }
  return builder.finish();
}

void PreferenceBatches::count_row(const Items& from, int64_t row, int64_t& pairs, int64_t& tokens) const {
  if (row < 0) return;
  for (const Placement& place : from.rows[static_cast<size_t>(row)]) {
    const Item& item = from.items[static_cast<size_t>(place.sample)];
    const int64_t prompt = options_.learns_prompts ? 1 : std::max<int64_t>(item.prompt_tokens[0], 1);
    ++pairs;
    tokens += item.sequences[0].num_tokens() - prompt;
  }
}

data::MicroBatch PreferenceBatches::make_batch(Items& from, int64_t at, int64_t step_pairs, int64_t step_tokens) {
  const PackedRow empty;
  const PackedRow& row = at < 0 ? empty : from.rows[static_cast<size_t>(at)];
  TuneBatch batch = lay_out(from, row);
  const bool is_known = std::all_of(row.begin(), row.end(), [&](const Placement& p) {
    return from.items[static_cast<size_t>(p.sample)].has_reference;
  });
  if (options_.needs_reference && !is_known) keep(from, row, batch, reference_logprobs(*transformer_, batch));
  auto pairs = std::make_shared<PairBatch>();
  auto labelled = std::make_shared<LabelledBatch>();
  visit_spans(from, row, batch, [&](size_t i, size_t k, AnswerSpan span) {
    const Item& item = from.items[i];
    span.reference = item.reference[k];
    if (k == 0) {
      pairs->pairs.push_back({span, {}, item.margin});
      labelled->answers.push_back({span, {}, item.is_desirable});
    } else {
      pairs->pairs.back().rejected = span;
      labelled->answers.back().mismatched = span;
    }
  });
  pairs->step_pairs = step_pairs;
  pairs->step_nll_tokens = step_tokens;
  std::fill(batch.weights.begin(), batch.weights.end(), 0.0f);  // the objective's, later
  if (options_.is_kto) {
    batch.extra = labelled;
  } else {
    batch.extra = pairs;
  }
  return batch;
}

void PreferenceBatches::read_validation() {
  const auto count = static_cast<int64_t>(held_out_.rows.size());
  if (count == 0) return;
  const RowSchedule schedule(count, 1, 1, ranks_);
  const int64_t steps = std::min(schedule.steps(), std::max<int64_t>(1, recipe_.base.log.eval_batches / ranks_));
  int64_t pairs = 0, tokens = 0;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t rank = 0; rank < ranks_; ++rank) count_row(held_out_, schedule.rows(step, 0, rank)[0], pairs, tokens);
  }
  for (int64_t step = 0; step < steps; ++step)
    validation_.push_back(make_batch(held_out_, schedule.rows(step, 0, rank_)[0], pairs, tokens));
}

BatchSizes plan_preferences(train::RunPlan& plan, const spec::TuneRecipe& recipe, const parallel::Mesh& mesh,
                            const PreferenceOptions& options) {
  const RecipeRenderer renderer(*plan.tokenizer, recipe);
  std::vector<Record> records = read_sources(recipe.base.data.sources, recipe);
  std::vector<Record> held_out = read_sources(recipe.base.data.validation, recipe);
  if (recipe.base.data.validation_share > 0) held_out = hold_out(records, recipe.base.data.validation_share);
  Items items = make_items(records, *renderer, recipe, options), validation;
  if (!held_out.empty()) {
    validation = make_items(held_out, *renderer, recipe, options);
    if (plan.recipe.data.validation.empty()) plan.recipe.data.validation = recipe.base.data.sources;
  }
  auto source = std::make_unique<PreferenceBatches>(std::move(items), std::move(validation), recipe, mesh, options);
  const Items& all = source->items();
  const int64_t tokens = recipe.base.train.micro_batch * recipe.base.data.sequence_length,
                per_epoch = source->steps_of_an_epoch(), rows = static_cast<int64_t>(all.rows.size());
  plan.steps = recipe.base.train.steps > 0 ? recipe.base.train.steps
               : recipe.base.train.tokens > 0
                   ? (recipe.base.train.tokens + source->tokens_at(0) - 1) / source->tokens_at(0)
                   : std::max<int64_t>(1, std::llround(recipe.tune.epochs * static_cast<double>(per_epoch)));
  plan.data_text = fmt::format(
      "steps      {} of {} micro-batches of {} tokens ({} an epoch)\ndata       {} {}, {} tokens; {} micro-batches "
      "{:.1f} % full\n",
      base::format_grouped(plan.steps), source->micro_batches() * mesh.data().size(), base::format_grouped(tokens),
      base::format_grouped(per_epoch), base::format_grouped(static_cast<int64_t>(all.items.size())),
      options.is_kto ? "labelled answers" : "pairs", base::format_grouped(all.tokens), base::format_grouped(rows),
      100.0 * static_cast<double>(all.tokens) / static_cast<double>(rows * tokens));
  const BatchSizes sizes{tokens, source->max_sequences(), source->micro_batches(), true};
  plan.source = std::move(source);
  return sizes;
}

}  // namespace sinter::tune
