#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "data/loader.h"
#include "data/permutation.h"
#include "data/source.h"
#include "data/token_shard.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

class Data : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("sinter_data_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  // Documents of the given lengths; ids count up from `first`.
  std::string make_shard(const std::string& name, const std::vector<int>& lengths, int64_t vocab = 1000,
                         int32_t first = 0) {
    TokenShardWriter writer(path(name), vocab, 7);
    for (int length : lengths) {
      std::vector<int32_t> tokens(static_cast<size_t>(length));
      std::iota(tokens.begin(), tokens.end(), first);
      first += length;
      writer.add_document(tokens);
    }
    writer.commit();
    return path(name);
  }
  static std::string error_of(const std::string& content) {
    try {
      TokenShard shard(std::as_bytes(std::span(content)), "b.tok");
      shard.verify();
    } catch (const base::Error& e) {
      return e.what();
    }
    return "";
  }
  fs::path folder_;
};

TEST_F(Data, ShardGivesBackItsDocuments) {
  for (int64_t vocab : {1000, 100000}) {
    TokenShard shard(make_shard("a.tok", {3, 1, 700}, vocab));
    EXPECT_EQ(shard.token_bytes(), vocab == 1000 ? 2 : 4);
    EXPECT_EQ(shard.num_documents(), 3);
    EXPECT_EQ(shard.num_tokens(), 704);
    EXPECT_EQ(shard.document_begin(2), 4);
    EXPECT_EQ(shard.document_of(3), 1);
    std::vector<int32_t> tokens(704);
    shard.read(0, 704, tokens.data());
    EXPECT_EQ(tokens[703], 703);
  }
}

TEST_F(Data, EveryTruncationAndEveryFlippedByteIsFound) {
  const std::string good = base::read_file(make_shard("a.tok", {3, 1, 70}));
  for (size_t i = 0; i < good.size(); ++i) {
    EXPECT_NE(error_of(good.substr(0, i)).find("b.tok"), std::string::npos) << "cut at " << i;
    std::string flipped = good;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x10);
    EXPECT_NE(error_of(flipped).find("b.tok"), std::string::npos) << "flipped at " << i;
  }
}

TEST_F(Data, AShardWithIdsOutsideItsVocabularyIsNotWhole) {
  EXPECT_NO_THROW(TokenShard(make_shard("large.tok", {200000}, 1000000)).verify());
  std::string content = base::read_file(make_shard("a.tok", {40}, 1000));
  EXPECT_EQ(error_of(content), "");
  // By the header, hashed anew, the vocabulary is smaller than the largest id: 39.
  const uint64_t vocabulary = 39;
  std::memcpy(content.data() + 16, &vocabulary, 8);
  const uint64_t hash = base::hash_bytes(std::as_bytes(std::span(content)).first(56));
  std::memcpy(content.data() + 56, &hash, 8);
  EXPECT_NE(error_of(content).find("id 39"), std::string::npos) << error_of(content);
}

TEST_F(Data, TheShardsOfOneTextComeInTheirOrder) {
  fs::create_directory(folder_ / "sh");
  for (const char* name : {"sh/b.tok", "sh/b-00001.tok", "sh/b-00002.tok", "sh/a-1.tok"}) make_shard(name, {4});
  std::vector<std::string> names;
  for (const std::string& found : shard_paths(path("sh"))) names.push_back(fs::path(found).filename());
  EXPECT_EQ(names, (std::vector<std::string>{"a-1.tok", "b.tok", "b-00001.tok", "b-00002.tok"}));
}

TEST_F(Data, WriterRefusesIdsOutsideTheVocabulary) {
  TokenShardWriter writer(path("a.tok"), 10, 0);
  EXPECT_THROW(writer.add_document(std::vector<int32_t>{10}), base::Error);
  EXPECT_THROW(writer.add_document(std::vector<int32_t>{-1}), base::Error);
}

TEST_F(Data, PermutationIsABijectionThatDependsOnTheKey) {
  for (uint64_t count : {1, 2, 3, 17, 1000, 4097}) {
    std::set<uint64_t> seen;
    uint64_t same = 0;
    Permutation a(count, 1), b(count, 2);
    for (uint64_t i = 0; i < count; ++i) {
      seen.insert(a(i));
      EXPECT_LT(a(i), count);
      same += a(i) == b(i);
    }
    EXPECT_EQ(seen.size(), count);
    if (count >= 1000) {
      EXPECT_LT(same, 20u);
    }
  }
}

TEST_F(Data, EverySampleOfAnEpochIsSeenOnceAndWeightsHold) {
  SampleOrder order({100, 1000}, {1.0, 3.0}, 5, true);
  std::vector<std::set<int64_t>> seen(2);
  int64_t from_first = 0, first_epoch = 0;
  for (int64_t k = 0; k < 8192; ++k) {
    SampleAddress at = order(k);
    from_first += at.source == 0;
    if (at.epoch == 0) {
      EXPECT_TRUE(seen[static_cast<size_t>(at.source)].insert(at.index).second);
      first_epoch += at.source == 0;
    }
  }
  EXPECT_EQ(from_first, 2048);
  EXPECT_EQ(first_epoch, 100);
  EXPECT_EQ(seen[1].size(), 1000u);
}

TEST_F(Data, TheShareOfASourceIsTheOneItGets) {
  const SampleOrder order({50, 50, 50}, {3, 1, 1e-9}, 1, true);
  EXPECT_NEAR(order.share(0), 0.75, 1e-3);
  EXPECT_EQ(order.share(2), 1.0 / 4096);
  EXPECT_EQ(order.share(0) + order.share(1) + order.share(2), 1.0);
  EXPECT_EQ(SampleOrder({50}, {0.3}, 1, true).share(0), 1.0);
}

TEST_F(Data, BatchRampGrowsInWholeMicroBatchesAndItsSumsAgree) {
  BatchSchedule schedule(8, 64, 10, 4);
  EXPECT_EQ(schedule.sequences_at(0), 8);
  EXPECT_EQ(schedule.sequences_at(10), 64);
  int64_t sum = 0;
  for (int64_t step = 0; step < 20; ++step) {
    EXPECT_EQ(schedule.sequences_before(step), sum);
    EXPECT_EQ(schedule.sequences_at(step) % 4, 0);
    sum += schedule.sequences_at(step);
  }
  EXPECT_EQ(schedule.steps_for(sum), 20);
  EXPECT_EQ(schedule.steps_for(sum + 1), 21);
}

TEST_F(Data, PackedDocumentsAreSequencesOfTheirOwn) {
  TokenSource source(make_shard("a.tok", {3, 1, 6}), 5, {});
  EXPECT_EQ(source.num_windows(), 2);
  EXPECT_EQ(source.max_pieces(), 3);
  BatchBuilder builder(2, 5, source.max_pieces(), spec::Packing::documents);
  builder.add(source, 0);
  builder.add(source, 1);
  MicroBatch batch = builder.take();
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{0, 1, 2, 0, 0, 0, 1, 2, 3, 4}));
  EXPECT_EQ(batch.sequence_of, (std::vector<int32_t>{0, 0, 0, 1, 2, 3, 3, 3, 3, 3}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{1, 2, -1, -1, 5, 6, 7, 8, 9, -1}));
  EXPECT_EQ(batch.offsets, (std::vector<int32_t>{0, 3, 4, 5, 10, 10, 10, 10, 10}));
  EXPECT_EQ(batch.contexts, (std::vector<int32_t>{3, 1, 1, 5, 0, 0, 0, 0}));
  EXPECT_EQ(batch.num_supervised, 7);
}

TEST_F(Data, TheTokenBehindAWindowIsATargetOnlyWhereItsDocumentGoesOn) {
  auto last_targets = [&](const std::vector<int>& lengths) {
    TokenSource source(make_shard("a.tok", lengths), 5, {});
    std::vector<int32_t> out;
    for (int64_t i = 0; i < source.num_windows(); ++i) {
      BatchBuilder builder(1, 5, source.max_pieces(), spec::Packing::documents);
      builder.add(source, i);
      out.push_back(builder.take().targets.back());
    }
    return out;
  };
  EXPECT_EQ(last_targets({5, 5}), (std::vector<int32_t>{-1, -1}));  // documents end where windows do
  EXPECT_EQ(last_targets({6, 4}), (std::vector<int32_t>{5, -1}));
  EXPECT_EQ(last_targets({4, 1, 7, 3}), (std::vector<int32_t>{-1, 10, -1}));
}

TEST_F(Data, ExtraHeadsPredictFurtherAheadInTheSameDocument) {
  TokenSource source(make_shard("a.tok", {4, 8}), 10, {});
  BatchBuilder builder(1, 10, source.max_pieces(), spec::Packing::documents);
  builder.add(source, 0);
  const MicroBatch batch = builder.take();
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{1, 2, 3, -1, 5, 6, 7, 8, 9, 10}));
  EXPECT_EQ(batch.targets_ahead(0), (std::vector<int32_t>{2, 3, -1, -1, 6, 7, 8, 9, 10, -1}));
  EXPECT_EQ(batch.targets_ahead(1), (std::vector<int32_t>{3, -1, -1, -1, 7, 8, 9, 10, -1, -1}));
}

TEST_F(Data, StreamPackingCrossesDocuments) {
  TokenSource source(make_shard("a.tok", {3, 1, 6}), 5, {});
  BatchBuilder builder(1, 5, source.max_pieces(), spec::Packing::stream);
  builder.add(source, 0);
  MicroBatch batch = builder.take();
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(batch.offsets, (std::vector<int32_t>{0, 5}));
  TrainingBatch device(core::runtime({}).allocator(), 5, 1, 5);
  EXPECT_TRUE(device.load(batch).equal_lengths);
}

TEST_F(Data, ALoadedBatchTellsInCoarseStepsHowManySequencesAreNotEmpty) {
  auto filled = [](int64_t count) {
    MicroBatch batch;
    for (int64_t i = 0; i < count; ++i) batch.add_sequence(std::vector<int32_t>{7, 8});
    batch.pad_sequences(400);
    batch.targets.resize(batch.tokens.size(), -1);
    TrainingBatch device(core::runtime({}).allocator(), batch.num_tokens(), 400, 1000);
    return device.load(batch).filled_sequences;
  };
  EXPECT_EQ(filled(3), 16);
  EXPECT_EQ(filled(17), 24);
  EXPECT_EQ(filled(24), 24);
  EXPECT_EQ(filled(25), 32);
  EXPECT_EQ(filled(300), 384);
  EXPECT_EQ(filled(399), 400);
  EXPECT_EQ(filled(400), 400);
}

TEST_F(Data, ShortValidationWindowIsPaddedWithoutTargets) {
  LoaderOptions options{.sources = {{make_shard("a.tok", {20})}},
                        .validation = {{make_shard("v.tok", {7})}},
                        .validation_micro_batches = 10,
                        .window = 5,
                        .micro_batch = 3};
  Loader loader(options, BatchSchedule(3, 3, 0, 3));
  ASSERT_EQ(loader.validation().size(), 1u);
  const MicroBatch& batch = loader.validation()[0];
  EXPECT_EQ(batch.tokens.size(), 15u);
  EXPECT_EQ(batch.num_supervised, 6);
  EXPECT_EQ(static_cast<int64_t>(batch.contexts.size()), loader.max_sequences());
}

TEST_F(Data, AValidationShareTakesTheEndOfEveryShardAndTrainingTheRest) {
  fs::create_directories(folder_ / "two");
  make_shard("two/a.tok", {50});
  make_shard("two/b.tok", {30}, 1000, 500);
  const TokenSource all(path("two"), 5, {}), rest(path("two"), 5, {.held_share = 0.25}),
      held(path("two"), 5, {.held_share = 0.25, .has_held_only = true});
  EXPECT_EQ(all.num_windows(), 16);
  EXPECT_EQ(rest.num_windows(), 7 + 4);  // of 10 and 6, less 3 and 2
  ASSERT_EQ(held.num_windows(), 3 + 2);
  std::vector<int32_t> tokens;
  std::vector<WindowPiece> pieces;
  std::set<int32_t> seen;
  for (const TokenSource* source : {&rest, &held}) {
    for (int64_t i = 0; i < source->num_windows(); ++i) {
      source->read(i, tokens, pieces);
      EXPECT_TRUE(seen.insert(tokens[0]).second) << "window " << i << " stands in both";
    }
  }
  EXPECT_EQ(seen.size(), 16u);
  held.read(3, tokens, pieces);
  EXPECT_EQ(tokens[0], 520);
  Loader loader({.sources = {{path("two")}},
                 .validation_share = 0.25,
                 .validation_micro_batches = 9,
                 .window = 5,
                 .micro_batch = 2},
                BatchSchedule(2, 2, 0, 2));
  EXPECT_EQ(loader.validation().size(), 3u);
}

TEST_F(Data, RanksAndAccumulationShareOneStreamOfSamples) {
  std::vector<int> lengths;
  for (int i = 0; i < 60; ++i) lengths.push_back(1 + i % 17);
  const std::string shard = make_shard("a.tok", lengths);
  auto samples = [&](int64_t micro_batch, int ranks, int64_t step) {
    std::multiset<std::vector<int32_t>> out;
    for (int rank = 0; rank < ranks; ++rank) {
      Loader loader(
          {.sources = {{shard}}, .window = 8, .micro_batch = micro_batch, .seed = 3, .rank = rank, .ranks = ranks},
          BatchSchedule(8, 8, 0, micro_batch * ranks));
      for (const MicroBatch& batch : loader.step(step)) {
        for (size_t i = 0; i < batch.tokens.size(); i += 8)
          out.insert({batch.tokens.begin() + static_cast<long>(i), batch.tokens.begin() + static_cast<long>(i) + 8});
      }
    }
    return out;
  };
  for (int64_t step : {0, 1, 9}) {
    auto expected = samples(8, 1, step);
    EXPECT_EQ(expected.size(), 8u);
    EXPECT_EQ(samples(1, 1, step), expected);
    EXPECT_EQ(samples(2, 2, step), expected);
    EXPECT_EQ(samples(1, 4, step), expected);
  }
}

TEST_F(Data, ReadingOnFromAnyStepGivesTheSameBatches) {
  LoaderOptions options{
      .sources = {{make_shard("a.tok", std::vector<int>(30, 11)), 1.0}, {make_shard("b.tok", {500}, 1000, 400), 2.0}},
      .window = 8,
      .micro_batch = 2,
      .seed = 3};
  Loader whole(options, BatchSchedule(2, 6, 4, 2));
  std::vector<std::vector<MicroBatch>> steps;
  for (int64_t s = 0; s < 8; ++s) steps.push_back(whole.step(s));
  Loader resumed(options, BatchSchedule(2, 6, 4, 2));
  for (int64_t s = 5; s < 8; ++s) {
    auto batches = resumed.step(s);
    ASSERT_EQ(batches.size(), steps[static_cast<size_t>(s)].size());
    for (size_t i = 0; i < batches.size(); ++i) EXPECT_EQ(batches[i].tokens, steps[static_cast<size_t>(s)][i].tokens);
  }
}

TEST_F(Data, TheStepsOfARampReadOnWhereTheOneBeforeEnded) {
  Loader loader({.sources = {{make_shard("a.tok", {200})}}, .window = 2, .micro_batch = 2, .shuffle = false},
                BatchSchedule(2, 8, 5, 2));
  std::vector<int32_t> read, expected(100);
  for (int64_t step = 0; read.size() < expected.size(); ++step) {
    for (const MicroBatch& batch : loader.step(step)) read.insert(read.end(), batch.tokens.begin(), batch.tokens.end());
  }
  std::iota(expected.begin(), expected.end(), 0);
  read.resize(expected.size());
  EXPECT_EQ(read, expected);
}

TEST_F(Data, EveryEpochIsShuffledAnew) {
  SampleOrder order({500}, {1.0}, 5, true);
  int64_t same = 0;
  for (int64_t k = 0; k < 500; ++k) same += order(k).index == order(500 + k).index;
  EXPECT_LT(same, 20);
}

TEST_F(Data, WithoutShufflingSeveralSourcesAreReadInOrderAndEvenly) {
  SampleOrder order({100, 1000}, {1.0, 3.0}, 5, {});
  std::vector<int64_t> next{0, 0};
  for (int64_t k = 0; k < 3 * 4096; ++k) {
    const SampleAddress at = order(k);
    const auto s = static_cast<size_t>(at.source);
    EXPECT_EQ(at.index, next[s]++ % (s == 0 ? 100 : 1000));
    EXPECT_NEAR(static_cast<double>(next[0]), static_cast<double>(k + 1) / 4, 1.0);
  }
}

TEST_F(Data, AScheduleContinuedElsewhereCountsOnFromThere) {
  BatchSchedule schedule(4, 16, 3, 4);
  const int64_t at_step = schedule.sequences_at(2);
  schedule.continue_at(2, 100);
  EXPECT_EQ(schedule.sequences_before(2), 100);
  EXPECT_EQ(schedule.sequences_at(2), at_step);
  EXPECT_EQ(schedule.sequences_before(5), 100 + at_step + 2 * 16);
  EXPECT_EQ(schedule.steps_for(100 + at_step + 2 * 16), 5);
  EXPECT_EQ(schedule.steps_for(100 + at_step + 2 * 16 + 1), 6);
}

TEST_F(Data, SourcesOfDifferentTokenizersAreNotMixed) {
  auto write = [&](const char* name, uint64_t hash) {
    TokenShardWriter writer(path(name), 50, hash);
    writer.add_document(std::vector<int32_t>{1, 2, 3, 4, 5, 6});
    writer.commit();
    return spec::SourceRecipe{path(name), 1.0};
  };
  const spec::SourceRecipe a = write("h1.tok", 1), b = write("h2.tok", 2), unknown = write("h0.tok", 0);
  auto load = [&](std::vector<spec::SourceRecipe> sources, std::vector<spec::SourceRecipe> validation) {
    Loader({.sources = sources, .validation = validation, .window = 3, .micro_batch = 1}, {1, 1, 0, 1});
  };
  EXPECT_THROW(load({a, b}, {}), base::Error);
  EXPECT_THROW(load({a}, {b}), base::Error);
  EXPECT_NO_THROW(load({a, unknown}, {a}));
  // One that does not tell is no bridge between two that do.
  EXPECT_THROW(load({unknown, a, b}, {}), base::Error);
  EXPECT_THROW(load({a}, {unknown, b}), base::Error);
  EXPECT_THROW(load({unknown, a}, {unknown, b}), base::Error);
  auto told = [&](std::vector<spec::SourceRecipe> sources, std::vector<spec::SourceRecipe> validation) {
    return Loader({.sources = sources, .validation = validation, .window = 3, .micro_batch = 1}, {1, 1, 0, 1})
        .tokenizer_hash();
  };
  EXPECT_EQ(told({unknown, b}, {}), 2u);
  EXPECT_EQ(told({unknown}, {unknown, a}), 1u);
  EXPECT_EQ(told({unknown}, {}), 0u);
}

TEST_F(Data, TooLittleDataForOneSequenceIsAnError) {
  const std::string shard = make_shard("a.tok", {4});
  EXPECT_THROW(TokenSource(shard, 5, {}), base::Error);
  EXPECT_NO_THROW(TokenSource(shard, 5, {.keep_tail = true}));
}

}  // namespace
}  // namespace sinter::data
