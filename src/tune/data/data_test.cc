#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <random>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/source_dir.h"
#include "core/tensor.h"
#include "kernels/table.h"
#include "tune/data/embedding_noise.h"
#include "tune/data/pack.h"
#include "tune/data/record.h"
#include "tune/data/render.h"

namespace sinter::tune {
namespace {

std::string tokenizer_path() { return base::source_dir() + "/tests/golden/tune/models/tokenizer"; }
const tokenizer::Tokenizer& tokenizer_of_tests() {
  static const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(tokenizer_path());
  return tokenizer;
}
const tokenizer::ChatTemplate& chatml() {
  static const tokenizer::ChatTemplate chat(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
      "chatml");
  return chat;
}
Record parse(const std::string& row, RecordSource source = {}) { return parse_record(row, source, "row:1"); }
std::string text_of(const TokenSegments& tokens, bool supervised) {
  std::vector<int32_t> ids;
  for (size_t t = 0; t < tokens.ids.size(); ++t) {
    if ((tokens.weights[t] != 0) == supervised) ids.push_back(tokens.ids[t]);
  }
  return tokenizer_of_tests().decode(ids);
}
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}
std::string temporary_file(const std::string& name, const std::string& content) {
  const std::string folder = ::testing::TempDir() + "tune_data_test";
  std::filesystem::create_directories(folder);
  base::write_file_atomic(folder + "/" + name, content);
  return folder + "/" + name;
}

TEST(TuneRecord, AFormatIsRecognisedByItsFields) {
  const std::pair<const char*, RecordFormat> kRows[] = {
      {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})", RecordFormat::messages},
      {R"({"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]})", RecordFormat::sharegpt},
      {R"({"instruction":"a","input":"","output":"b"})", RecordFormat::alpaca},
      {R"({"instruction":"a","response":"b"})", RecordFormat::alpaca},
      {R"({"question":"a","answer":"b"})", RecordFormat::question},
      {R"({"input":"a","output":"b"})", RecordFormat::question},
      {R"({"prompt":"a","completion":"b"})", RecordFormat::prompt_completion},
      {R"({"prompt":[{"role":"user","content":"a"}],"completion":[{"role":"assistant","content":"b"}]})",
       RecordFormat::prompt_completion},
      {R"({"prompt":"a","chosen":"b","rejected":"c"})", RecordFormat::preference},
      {R"({"conversations":[{"from":"human","value":"a"}],"chosen":{"from":"gpt","value":"b"},
           "rejected":{"from":"gpt","value":"c"}})",
       RecordFormat::preference},
      {R"({"prompt":"a","completion":"b","label":true})", RecordFormat::labelled},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}],"label":false})",
       RecordFormat::labelled},
      {R"({"prompt":"a"})", RecordFormat::prompts},
      {R"({"question":"a"})", RecordFormat::prompts},
      {R"({"text":"a"})", RecordFormat::text},
  };
  for (const auto& [row, format] : kRows) EXPECT_EQ(parse(row).format, format) << row;
}

TEST(TuneRecord, UnknownFieldsAreNamedInTheError) {
  const std::string error = error_of([] { parse(R"({"foo":1,"bar":2})"); });
  EXPECT_NE(error.find("\"foo\", \"bar\""), std::string::npos) << error;
  EXPECT_NE(error.find("row:1"), std::string::npos) << error;
}

TEST(TuneRecord, WhatIsWrongWithARowIsSaid) {
  const std::vector<std::pair<const char*, const char*>> kRows = {
      {R"({"foo":1})", "tune.fields"},
      {R"({"data":[{"prompt":"a","completion":"b"}]})", "the rows are inside \"data\""},
      {R"({"messages":"hello"})", "the messages are a string"},
      {R"({"messages":[]})", "the list of messages is empty"},
      {R"({"messages":["hello"]})", "message 1 is a string"},
      {R"({"messages":[{"text":"hello"}]})", "neither \"role\" nor \"from\""},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","text":"b"}]})",
       "message 2: it has no \"content\""},
      {R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null}]})", "\"content\" = null"},
      {"\xFF\xFE{", "not UTF-8"},
      {"[1]", "it is an array, expected an object"},
  };
  for (const auto& [row, what] : kRows) {
    const std::string error = error_of([&] { parse(row); });
    EXPECT_NE(error.find(what), std::string::npos) << row << ": " << error;
  }
  // A call of a function needs no words.
  parse(R"({"messages":[{"role":"user","content":"a"},
      {"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":{}}}]}]})");
}

TEST(TuneRecord, ANameForAFieldThatIsNoneIsRefused) {
  RecordSource source{.path = temporary_file("names.jsonl", R"({"q":"a","a":"b"})")};
  source.fields = {{"promt", "q"}};
  const std::string error = error_of([&] { read_records(source, {[](Record&&) {}, {}}); });
  EXPECT_NE(error.find("there is no field 'promt'; did you mean 'prompt'?"), std::string::npos) << error;
}

TEST(TuneRecord, FieldsCanBeNamed) {
  RecordSource source;
  source.fields = {{"prompt", "problem"}, {"completion", "solution"}};
  const Record record = parse(R"({"problem":"1+1","solution":"2"})", source);
  EXPECT_EQ(record.format, RecordFormat::prompt_completion);
  EXPECT_EQ(record.prompt.text, "1+1");
  EXPECT_EQ(record.completion.text, "2");
}

TEST(TuneRecord, ShareGptCallsBecomeOpenAisForm) {
  const Record record = parse(
      R"({"system":"s","tools":"[{\"name\":\"f\"}]","conversations":[{"from":"human","value":"a"},
          {"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{\"x\":1}}"},
          {"from":"observation","value":"7"},{"from":"gpt","value":"b"}]})");
  const std::vector<Message>& messages = record.completion.messages;
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[2].role, "assistant");
  tokenizer::jinja::Meter meter(10000);
  EXPECT_EQ(tokenizer::jinja::to_json(messages[2].value, {}, meter),
            R"({"role": "assistant", "content": "", "tool_calls": [{"id": "call00001", "type": "function", )"
            R"("function": {"name": "f", "arguments": {"x": 1}}}]})");
  EXPECT_EQ(messages[3].role, "tool");
  EXPECT_EQ(tokenizer::jinja::to_json(record.tools, {}, meter), R"([{"type": "function", "function": {"name": "f"}}])");
}

TEST(TuneRecord, AnswersThatBeginAlikeShareTheirPrompt) {
  Record record = parse(R"({"chosen":"Human: hi Bot: hello","rejected":"Human: hi Bot: help"})");
  EXPECT_EQ(record.prompt.text + record.completion.text, "Human: hi Bot: hello");
  EXPECT_EQ(record.prompt.text, "Human: hi Bot: hel");
  record = parse(R"({"chosen":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],
                     "rejected":[{"role":"user","content":"q"},{"role":"assistant","content":"b"}]})");
  ASSERT_EQ(record.prompt.messages.size(), 1u);
  EXPECT_EQ(record.completion.messages.at(0).content, "a");
  EXPECT_EQ(record.rejected.messages.at(0).content, "b");
}

TEST(TuneRecord, BadRowsAreNamedAndReadingGoesOn) {
  const std::string path =
      temporary_file("bad.jsonl",
                     "{\"prompt\":\"a\",\"completion\":\"b\"}\n\nnot json\n{\"messages\":[{\"role\":"
                     "1}]}\n[[[]]]\n{\"prompt\":\"c\",\"completion\":\"d\"}\n" +
                         std::string(100000, '[') + "\n");
  std::vector<std::string> good, bad;
  read_records({.path = path}, {[&](Record&& r) { good.push_back(r.origin); },
                                [&](BadRow&& b) { bad.push_back(b.origin + " " + b.problem); }});
  EXPECT_EQ(good, (std::vector<std::string>{"bad.jsonl:1", "bad.jsonl:6"}));
  ASSERT_EQ(bad.size(), 4u);
  EXPECT_TRUE(bad[0].starts_with("bad.jsonl:3 bad.jsonl:3: it is not JSON")) << bad[0];
  EXPECT_NE(
      error_of([&] {
        read_records({.path = temporary_file("wide.jsonl", std::string("\xFF\xFE{\0}\0", 6))}, {[](Record&&) {}, {}});
      }).find("is UTF-16; expected UTF-8"),
      std::string::npos);
  EXPECT_NE(error_of([&] {
              read_records({.path = temporary_file("none.jsonl", "x\n")}, {[](Record&&) {}, {}});
            }).find("no row could be read"),
            std::string::npos);
}

TEST(TuneRecord, AnArrayGivesTheRowsOfItsLines) {
  const std::string a = R"({"prompt":"a [1, 2]","completion":"b\"]"})", b = R"({"prompt":"c","completion":"{d"})";
  std::vector<std::string> lines, array;
  read_records({.path = temporary_file("rows.jsonl", a + "\n" + b + "\n")},
               {[&](Record&& r) { lines.push_back(r.prompt.text + "|" + r.completion.text); }, {}});
  read_records({.path = temporary_file("rows.json", "[\n  " + a + ",\n  " + b + "\n]\n")},
               {[&](Record&& r) { array.push_back(r.prompt.text + "|" + r.completion.text); }, {}});
  EXPECT_EQ(lines, array);
  EXPECT_EQ(lines.size(), 2u);
}

const char* kTwoTurns = R"({"messages":[{"role":"user","content":"one"},{"role":"assistant","content":"first"},
    {"role":"user","content":"two"},{"role":"assistant","content":"second"}]})";

TEST(TuneRender, AssistantTurnsAreSupervisedWithTheTokenThatEndsThem) {
  const Renderer renderer(tokenizer_of_tests(), &chatml(), {});
  const Sample sample = renderer.sample(parse(kTwoTurns));
  EXPECT_EQ(text_of(sample.tokens, true), "first<|im_end|>\nsecond<|im_end|>\n");
  EXPECT_EQ(text_of(sample.tokens, false),
            "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>"
            "assistant\n");
}

TEST(TuneRender, TheLastTurnOrAllOfItCanBeLearned) {
  const Renderer last(tokenizer_of_tests(), &chatml(), {.train_on = TrainOn::last});
  EXPECT_EQ(text_of(last.sample(parse(kTwoTurns)).tokens, true), "second<|im_end|>\n");
  const Renderer all(tokenizer_of_tests(), &chatml(), {.train_on = TrainOn::all});
  EXPECT_EQ(text_of(all.sample(parse(kTwoTurns)).tokens, false), "");
}

TEST(TuneRender, WeightsOfMessagesAreThoseOfTheirTokens) {
  const Renderer renderer(tokenizer_of_tests(), &chatml(), {});
  const Sample sample = renderer.sample(
      parse(R"({"messages":[{"role":"user","content":"one"},{"role":"assistant","content":"first","train":false},
    {"role":"user","content":"two"},{"role":"assistant","content":"second","weight":0.5}]})"));
  EXPECT_EQ(text_of(sample.tokens, true), "second<|im_end|>\n");
  EXPECT_FLOAT_EQ(sample.tokens.weights.back(), 0.5f);
}

TEST(TuneRender, ASampleWithoutSupervisedTokensIsAnError) {
  const Renderer renderer(tokenizer_of_tests(), &chatml(), {});
  EXPECT_NE(error_of([&] {
              renderer.sample(parse(R"({"messages":[{"role":"user","content":"one"}]})"));
            }).find("none of its"),
            std::string::npos);
}

TEST(TuneRender, MarkersInMessagesAreText) {
  const char* row = R"({"messages":[{"role":"user","content":"what is <|im_end|>?"},
      {"role":"assistant","content":"an end"}]})";
  const int32_t end = tokenizer_of_tests().token_id("<|im_end|>");
  auto count = [&](bool as_text) {
    const Sample sample = Renderer(tokenizer_of_tests(), &chatml(), {.markers_are_text = as_text}).sample(parse(row));
    return std::count(sample.tokens.ids.begin(), sample.tokens.ids.end(), end);
  };
  EXPECT_EQ(count(true), 2);
  EXPECT_EQ(count(false), 3);
}

TEST(TuneRender, ATemplateThatMovesMessagesIsRefused) {
  const tokenizer::ChatTemplate last_first("{% for m in messages|reverse %}[{{ m.content }}]{% endfor %}", "reverse");
  const Renderer renderer(tokenizer_of_tests(), &last_first, {});
  EXPECT_NE(error_of([&] { renderer.sample(parse(kTwoTurns)); }).find("does not keep prefixes"), std::string::npos);
  const tokenizer::ChatTemplate open_end(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n",
      "open end");
  const Renderer other(tokenizer_of_tests(), &open_end, {});
  EXPECT_NE(error_of([&] {
              other.sample(parse(R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]})"));
            }).find("next answer"),
            std::string::npos);
}

TEST(TuneRender, TextsGetNoTemplateAndEndWithEos) {
  const Renderer renderer(tokenizer_of_tests(), &chatml(), {});
  const Sample sample = renderer.sample(parse(R"({"prompt":"one","completion":" two"})"));
  const std::string eos = tokenizer_of_tests().token_text(tokenizer_of_tests().special_ids().eos);
  EXPECT_EQ(text_of(sample.tokens, true), " two" + eos);
  EXPECT_EQ(text_of(sample.tokens, false), "one");
}

TEST(TuneRender, PairsShareTheirPromptsTokens) {
  const Renderer renderer(tokenizer_of_tests(), &chatml(), {});
  const PreferencePair pair =
      renderer.pair(parse(R"({"prompt":[{"role":"user","content":"q"}],"chosen":[{"role":"assistant","content":"good"}],
                "rejected":[{"role":"assistant","content":"bad"}],"margin":0.5})"));
  EXPECT_FLOAT_EQ(pair.margin, 0.5f);
  for (int64_t t = 0; t < pair.prompt_tokens; ++t) EXPECT_EQ(pair.chosen.ids[t], pair.rejected.ids[t]);
  EXPECT_EQ(text_of(pair.chosen, true), "good<|im_end|>\n");
  EXPECT_EQ(text_of(pair.rejected, true), "bad<|im_end|>\n");
}

TEST(TuneRender, APromptEndsWhereTheAnswerBegins) {
  const Renderer renderer(tokenizer_of_tests(), &chatml(), {});
  const Prompt prompt = renderer.prompt(parse(R"({"question":"2+2","answer":"4"})"));
  EXPECT_EQ(prompt.text, "<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(prompt.row, R"({"question":"2+2","answer":"4"})");
}

TEST(TunePack, RowsHoldEverySampleOnceAndWhole) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> lengths(random() % 200);
    for (int64_t& n : lengths) n = 1 + static_cast<int64_t>(random() % 64);
    std::vector<int> seen(lengths.size());
    int64_t total = 0, rows = 0;
    for (const PackedRow& row : pack_rows(lengths, 64, PackStrategy::best_fit)) {
      int64_t used = 0;
      for (const Placement& p : row) {
        EXPECT_EQ(p.begin, 0);
        EXPECT_EQ(p.end, lengths[static_cast<size_t>(p.sample)]);
        ++seen[static_cast<size_t>(p.sample)];
        used += p.end;
      }
      EXPECT_LE(used, 64);
      total += used;
      ++rows;
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<int64_t>(seen.size()));
    EXPECT_LE(rows, total / 32 + 1);  // any two rows hold more than one row
  }
}

TEST(TunePack, EveryRankHasTheSameStepsAndEveryRowOnce) {
  for (const int64_t rows : {1, 7, 24, 25}) {
    const RowSchedule schedule(rows, 2, 3, 4);
    std::vector<int> seen(static_cast<size_t>(rows));
    for (int64_t step = 0; step < schedule.steps(); ++step) {
      for (int64_t rank = 0; rank < 4; ++rank) {
        for (int64_t m = 0; m < 3; ++m) {
          for (const int64_t row : schedule.rows(step, m, rank)) {
            if (row >= 0) ++seen[static_cast<size_t>(row)];
          }
        }
      }
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), rows);
  }
}

TEST(TunePack, ABatchPredictsWithinItsSequencesOnly) {
  TokenSegments a, b;
  a.append({5, 6}, Role::prompt, 0);
  a.append({7, 8}, Role::completion, 1);
  b.append({9, 10, 11}, Role::completion, 0.5f);
  TuneBatchBuilder builder(10, 4);
  builder.add(a, 3);
  builder.add(b, 1);
  const TuneBatch batch = builder.finish();
  EXPECT_EQ(batch.tokens, (std::vector<int32_t>{5, 6, 7, 8, 9, 10, 11, 0, 0, 0}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{-1, 7, 8, -1, 10, 11, -1, -1, -1, -1}));
  EXPECT_EQ(batch.weights, (std::vector<float>{0, 1, 1, 0, 0.5f, 0.5f, 0, 0, 0, 0}));
  EXPECT_EQ(batch.positions, (std::vector<int32_t>{0, 1, 2, 3, 0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(batch.offsets, (std::vector<int32_t>{0, 4, 7, 10, 10}));
  EXPECT_EQ(batch.samples, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(batch.num_supervised, 4);
  EXPECT_DOUBLE_EQ(batch.weight_sum, 3);
}

TEST(TunePack, TheFillingStaysWithinThePositionsOfTheSequences) {
  TokenSegments a;
  a.append({5, 6, 7}, Role::completion, 1);
  TuneBatchBuilder builder(8, 3);
  builder.add(a, 0);
  EXPECT_EQ(builder.finish().positions, (std::vector<int32_t>{0, 1, 2, 0, 1, 2, 0, 1}));
  EXPECT_EQ(builder.finish().positions, std::vector<int32_t>(8, 0));
}

// Samples 0 and 1, of 4 and 3 tokens, in this order in a batch of 16.
TuneBatch two_samples(const std::vector<int64_t>& order) {
  TuneBatchBuilder builder(16, 4);
  for (int64_t sample : order) {
    TokenSegments tokens;
    tokens.append(std::vector<int32_t>(static_cast<size_t>(4 - sample), 1), Role::assistant, 1.0f);
    builder.add(tokens, sample);
  }
  return builder.finish();
}

TEST(EmbeddingNoise, BelongsToTheSampleAndItsLength) {
  const EmbeddingNoise noise{.alpha = 6, .hidden = 9, .seed = 1};
  TuneBatch one = two_samples({0, 1}), other = two_samples({1, 0}), next = two_samples({0, 1}), seeded = next;
  add_noise(one, noise, 5);
  add_noise(other, noise, 5);
  add_noise(next, noise, 6);
  add_noise(seeded, {.alpha = 6, .hidden = 9, .seed = 2}, 5);
  ASSERT_EQ(one.noise_scales.size(), 16u);
  for (size_t t = 0; t < 16; ++t) {
    // alpha / sqrt(L d)
    const float expected = t < 4 ? 6 / std::sqrt(4.0f * 9) : t < 7 ? 6 / std::sqrt(3.0f * 9) : 0;
    EXPECT_FLOAT_EQ(one.noise_scales[t], expected) << t;
    if (t >= 7) continue;
    EXPECT_EQ(one.noise_streams[t], other.noise_streams[t < 4 ? t + 3 : t - 4]) << t;
    EXPECT_NE(one.noise_streams[t], next.noise_streams[t]) << t;
    EXPECT_NE(one.noise_streams[t], seeded.noise_streams[t]) << t;
  }
  EXPECT_EQ(std::set<uint64_t>(one.noise_streams.begin(), one.noise_streams.begin() + 7).size(), 7u);
}

TEST(EmbeddingNoise, IsUniformWithinItsBound) {
  constexpr int64_t kTokens = 64, kHidden = 96;
  TuneBatchBuilder builder(kTokens + 8, 3);
  TokenSegments tokens;
  tokens.append(std::vector<int32_t>(kTokens, 1), Role::assistant, 1.0f);
  builder.add(tokens, 0);
  TuneBatch batch = builder.finish();
  add_noise(batch, {.alpha = 5, .hidden = kHidden, .seed = 3}, 0);
  core::DeviceRuntime& device = core::runtime({core::DeviceKind::cpu, 0});
  auto on_device = [&](const auto& values, const core::Shape& shape, core::DType dtype) {
    core::Tensor t(device.allocator(), shape, dtype);
    device.copy_to_device(t.raw(), values.data(), t.bytes(), device.stream());
    return t;
  };
  const core::Tensor y =
      on_device(std::vector<float>((kTokens + 8) * kHidden, 0), {kTokens + 8, kHidden}, core::DType::f32);
  kernels::kernels_for(device.stream().device)
      .row_noise(device.stream(), {.streams = on_device(batch.noise_streams, {kTokens + 8, 2}, core::DType::i32),
                                   .scales = on_device(batch.noise_scales, {kTokens + 8}, core::DType::f32),
                                   .y = y});
  const std::vector<float> noise = core::to_host<float>(y);
  const double bound = 5 / std::sqrt(static_cast<double>(kTokens * kHidden));
  double sum = 0, squares = 0, largest = 0;
  for (size_t i = 0; i < kTokens * kHidden; ++i) {
    sum += noise[i], squares += noise[i] * noise[i];
    largest = std::max(largest, std::abs(static_cast<double>(noise[i])));
  }
  const double n = kTokens * kHidden;
  EXPECT_LE(largest, bound * (1 + 1e-6));
  EXPECT_GT(largest, 0.99 * bound);
  EXPECT_NEAR(sum / n, 0, 5 * bound / std::sqrt(3 * n));
  EXPECT_NEAR(squares / n, bound * bound / 3, 0.05 * bound * bound);
  EXPECT_EQ(std::set<float>(noise.begin() + kTokens * kHidden, noise.end()), std::set<float>{0}) << "padding";
}

}  // namespace
}  // namespace sinter::tune
