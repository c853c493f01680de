// The training loader: which micro-batches a rank sees in a step is a pure function of (recipe, step, rank, ranks), so
// that a resumed run reads on exactly where it stopped. The next step is read ahead in the background.
#pragma once
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "data/batch.h"
#include "data/sample_order.h"
#include "data/source.h"
#include "spec/recipe.h"

namespace sinter::data {

struct LoaderOptions {
  std::vector<spec::SourceRecipe> sources;  // shards only; text is tokenized before (tokenize.h)
  std::vector<spec::SourceRecipe> validation;
  double validation_share = 0;           // of the sources, in place of `validation`
  int64_t validation_micro_batches = 0;  // most that are read, over all ranks
  int64_t window = 0;
  int64_t micro_batch = 0;  // windows of one micro-batch
  spec::Packing packing = spec::Packing::documents;
  bool shuffle = true;
  uint64_t seed = 0;
  int rank = 0, ranks = 1;
};

class Loader {
 public:
  Loader(const LoaderOptions& options, const BatchSchedule& schedule);
  ~Loader();
  // Another schedule from here on; before the first step that is asked for.
  void set_schedule(const BatchSchedule& schedule) { schedule_ = schedule; }
  // The micro-batches of this rank in `step` (from 0). Asking for steps in order is fast, any order works.
  std::vector<MicroBatch> step(int64_t step);
  // This rank's part of the validation data, read in order, the same every time; the last micro-batch may be padded.
  const std::vector<MicroBatch>& validation() const { return validation_; }
  int64_t micro_batches_at(int64_t step) const;
  int64_t max_tokens() const { return builder_.max_tokens(); }
  int64_t max_sequences() const { return builder_.max_sequences(); }
  const std::vector<std::unique_ptr<TokenSource>>& sources() const { return sources_; }
  double share(size_t source) const { return order_->share(source); }
  // Of the first source, training before validation, that tells its tokenizer: all others that do have the same. 0
  // where none does.
  uint64_t tokenizer_hash() const { return tokenizer_hash_; }
  const std::string& tokenizer_told_by() const { return tokenizer_told_by_; }  // that source's path

 private:
  std::vector<MicroBatch> read_step(int64_t step) const;
  void read_validation(const std::vector<std::unique_ptr<TokenSource>>& sources);
  void note_tokenizer(const TokenSource& source);
  LoaderOptions options_;
  BatchSchedule schedule_;
  std::vector<std::unique_ptr<TokenSource>> sources_;
  std::unique_ptr<SampleOrder> order_;
  BatchBuilder builder_;
  std::vector<MicroBatch> validation_;
  uint64_t tokenizer_hash_ = 0;
  std::string tokenizer_told_by_;
  int64_t ahead_step_ = -1;
  std::future<std::vector<MicroBatch>> ahead_;
};

}  // namespace sinter::data
