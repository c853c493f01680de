#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/source_dir.h"
#include "io/safetensors.h"

namespace sinter::eval {
namespace {

struct Golden {
  std::string folder = base::source_dir() + "/tests/golden/models/gpt2";
  io::SafetensorsFile answers{folder + "/golden.safetensors"};
  models::OpenModel model = models::open_model(folder, {});

  std::vector<std::vector<int32_t>> rows() const {
    const io::TensorEntry* ids = answers.find("input_ids");
    std::vector<int64_t> flat(static_cast<size_t>(ids->num_elements()));
    std::memcpy(flat.data(), ids->bytes.data(), ids->bytes.size());
    const auto half = static_cast<std::ptrdiff_t>(flat.size() / 2);
    return {{flat.begin(), flat.begin() + half}, {flat.begin() + half, flat.end()}};
  }
  double loss() const {
    float value = 0;
    std::memcpy(&value, answers.find("loss")->bytes.data(), sizeof(value));
    return value;
  }
};

TEST(Perplexity, WithoutAPrefixItIsTheLossOfTransformers) {
  Golden golden;
  double sum = 0;
  int64_t count = 0;
  for (const std::vector<int32_t>& row : golden.rows()) {
    PerplexityResult r = perplexity(golden.model, row, -1, {});
    EXPECT_EQ(r.num_tokens, static_cast<int64_t>(row.size()) - 1);
    sum += r.negative_log_likelihood;
    count += r.num_tokens;
  }
  EXPECT_NEAR(sum / static_cast<double>(count), golden.loss(), 1e-5);
}

// A prefix that is the text's first token makes the rest the same text, window by window.
TEST(Perplexity, APrefixIsContextLikeAnyToken) {
  Golden golden;
  std::vector<int32_t> tokens = golden.rows()[0], rest(tokens.begin() + 1, tokens.end());
  for (int64_t context : {48, 10}) {
    PerplexityResult alone = perplexity(golden.model, tokens, -1, {.context = context});
    PerplexityResult prefixed = perplexity(golden.model, rest, tokens[0], {.context = context});
    EXPECT_EQ(alone.num_tokens, prefixed.num_tokens);
    EXPECT_NEAR(alone.negative_log_likelihood, prefixed.negative_log_likelihood, 1e-4);
  }
}

// With a stride every window predicts only its last tokens, by all that fits before them.
TEST(Perplexity, AStridePredictsEachTokenOnceWithTheContextThatFits) {
  Golden golden;
  const std::vector<int32_t> tokens = golden.rows()[0];
  const int64_t context = 10, stride = 4, total = static_cast<int64_t>(tokens.size());
  // Of tokens (first, end), each by all of them before it.
  auto loss_of = [&](int64_t first, int64_t end) {
    const std::vector<int32_t> part(tokens.begin() + first, tokens.begin() + end);
    return part.size() < 2 ? 0.0 : perplexity(golden.model, part, -1, {}).negative_log_likelihood;
  };
  double expected = loss_of(0, context + 1);  // the first window predicts all it can
  for (int64_t begin = context + 1; begin < total; begin += stride) {
    const int64_t end = std::min(begin + stride, total), first = end - 1 - context;
    expected += loss_of(first, end) - loss_of(first, begin);
  }
  const PerplexityOptions options{.context = context, .stride = stride};
  const PerplexityResult found = perplexity(golden.model, tokens, -1, options);
  EXPECT_EQ(found.num_tokens, total - 1);
  EXPECT_NEAR(found.negative_log_likelihood, expected, 1e-3);
  const std::vector<int32_t> rest(tokens.begin() + 1, tokens.end());
  EXPECT_NEAR(perplexity(golden.model, rest, tokens[0], options).negative_log_likelihood, expected, 1e-3);
}

TEST(Perplexity, DocumentsArePredictedByThemselves) {
  Golden golden;
  const int32_t separator = 5, prefix = 7;
  std::vector<std::vector<int32_t>> parts = golden.rows();
  for (std::vector<int32_t>& part : parts) {
    std::replace(part.begin(), part.end(), separator, separator + 1);
    part.push_back(separator);
  }
  parts.push_back({3, 4});  // the last need not end
  std::vector<int32_t> whole;
  for (const auto& part : parts) whole.insert(whole.end(), part.begin(), part.end());
  for (int32_t before : {prefix, -1}) {
    for (int64_t context : {48, 10}) {
      double expected = 0;
      int64_t count = 0;
      for (const auto& part : parts) {
        const PerplexityResult r = perplexity(golden.model, part, before, {.context = context});
        EXPECT_EQ(r.num_documents, 1);
        expected += r.negative_log_likelihood;
        count += r.num_tokens;
      }
      const PerplexityResult r =
          perplexity(golden.model, whole, before, {.context = context, .separator = separator, .batch_tokens = 64});
      EXPECT_EQ(r.num_documents, 3);
      EXPECT_EQ(r.num_tokens, count);
      EXPECT_NEAR(r.negative_log_likelihood, expected, 1e-3);
    }
  }
}

TEST(Perplexity, WhatCannotBePredictedIsRefused) {
  Golden golden;
  EXPECT_THROW(perplexity(golden.model, {7}, -1, {}), base::Error);
  EXPECT_THROW(perplexity(golden.model, {7}, 512, {}), base::Error);
  EXPECT_EQ(perplexity(golden.model, {7}, 1, {}).num_tokens, 1);
}

TEST(Perplexity, WeightsThatAreNotFiniteAreAnError) {
  Golden golden;
  core::DeviceRuntime& device = core::runtime({});
  kernels::kernels_for({}).fill(device.stream(), {golden.model.store->compute(), std::nanf("")});
  EXPECT_THROW(perplexity(golden.model, {7, 8, 9}, 1, {}), base::Error);
}

}  // namespace
}  // namespace sinter::eval
