#include "data/loader.h"

#include <algorithm>
#include <system_error>

#include "base/error.h"

namespace sinter::data {
namespace {

// The first that tells its tokenizer, which all others are held against; the first where none does.
const TokenSource& first_known(const std::vector<std::unique_ptr<TokenSource>>& sources) {
  const auto known =
      std::find_if(sources.begin(), sources.end(), [](const auto& source) { return source->tokenizer_hash() != 0; });
  return known == sources.end() ? *sources.front() : **known;
}

std::vector<std::unique_ptr<TokenSource>> open_sources(const std::vector<spec::SourceRecipe>& recipes, int64_t window,
                                                       const SourcePart& part) {
  std::vector<std::unique_ptr<TokenSource>> sources;
  for (const spec::SourceRecipe& source : recipes) {
    sources.push_back(std::make_unique<TokenSource>(source.path, window, part));
    first_known(sources).check_same_tokenizer(*sources.back());
  }
  return sources;
}

int64_t most_pieces(const std::vector<std::unique_ptr<TokenSource>>& sources) {
  int64_t most = 1;
  for (const auto& source : sources) most = std::max(most, source->max_pieces());
  return most;
}

SampleOrder make_order(const LoaderOptions& options, const std::vector<std::unique_ptr<TokenSource>>& sources) {
  std::vector<int64_t> sizes;
  std::vector<double> weights;
  for (size_t s = 0; s < sources.size(); ++s) {
    sizes.push_back(sources[s]->num_windows());
    weights.push_back(options.sources[s].weight);
  }
  return SampleOrder(sizes, weights, options.seed, options.shuffle);
}

}  // namespace

Loader::Loader(const LoaderOptions& options, const BatchSchedule& schedule)
    : options_(options),
      schedule_(schedule),
      sources_(open_sources(options.sources, options.window, {.held_share = options.validation_share})),
      order_(std::make_unique<SampleOrder>(make_order(options, sources_))),
      builder_(options.micro_batch, options.window, most_pieces(sources_), options.packing) {
  note_tokenizer(first_known(sources_));
  const bool is_shared = options.validation_share > 0;
  if (options.validation.empty() && !is_shared) return;
  const auto validation = is_shared ? open_sources(options.sources, options.window,
                                                   {.held_share = options.validation_share, .has_held_only = true})
                                    : open_sources(options.validation, options.window, {.keep_tail = true});
  for (const auto& source : validation) first_known(sources_).check_same_tokenizer(*source);
  note_tokenizer(first_known(validation));
  // Both kinds of batch have the same shape, so that one memory plan serves them.
  builder_ = BatchBuilder(options.micro_batch, options.window, std::max(most_pieces(sources_), most_pieces(validation)),
                          options.packing);
  read_validation(validation);
}

void Loader::note_tokenizer(const TokenSource& source) {
  if (tokenizer_hash_ != 0) return;
  tokenizer_hash_ = source.tokenizer_hash();
  tokenizer_told_by_ = source.path();
}

Loader::~Loader() {
  if (ahead_.valid()) ahead_.wait();
}

int64_t Loader::micro_batches_at(int64_t step) const {
  return schedule_.sequences_at(step) / (options_.micro_batch * options_.ranks);
}

std::vector<MicroBatch> Loader::read_step(int64_t step) const {
  const int64_t first = schedule_.sequences_before(step), micro_batches = micro_batches_at(step);
  BatchBuilder builder = builder_;
  std::vector<MicroBatch> batches;
  for (int64_t i = 0; i < micro_batches; ++i) {
    for (int64_t j = 0; j < options_.micro_batch; ++j) {
      const SampleAddress at = (*order_)(first + (i * options_.ranks + options_.rank) * options_.micro_batch + j);
      builder.add(*sources_[static_cast<size_t>(at.source)], at.index);
    }
    batches.push_back(builder.take());
  }
  return batches;
}

std::vector<MicroBatch> Loader::step(int64_t step) {
  std::vector<MicroBatch> batches = ahead_.valid() && ahead_step_ == step ? ahead_.get() : read_step(step);
  if (ahead_.valid()) ahead_.wait();
  ahead_step_ = step + 1;
  try {
    ahead_ = std::async(std::launch::async, [this, step] { return read_step(step + 1); });
  } catch (const std::system_error&) {  // the system has no more threads: the next step is read when it is asked for
    ahead_ = {};
  }
  return batches;
}

void Loader::read_validation(const std::vector<std::unique_ptr<TokenSource>>& sources) {
  BatchBuilder builder = builder_;
  int64_t place = 0;  // of the window among all; micro-batches go to the ranks in turn
  for (const auto& source : sources) {
    for (int64_t i = 0; i < source->num_windows(); ++i, ++place) {
      const int64_t micro_batch = place / options_.micro_batch;
      if (micro_batch >= options_.validation_micro_batches) break;
      if (micro_batch % options_.ranks != options_.rank) continue;
      builder.add(*source, i);
      if (builder.is_full()) validation_.push_back(builder.take());
    }
  }
  if (!builder.is_empty()) validation_.push_back(builder.take());
}

}  // namespace sinter::data
