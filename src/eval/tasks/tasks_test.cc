#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/source_dir.h"
#include "eval/run.h"
#include "eval/score/log_softmax.h"
#include "eval/tasks/python_regex.h"
#include "eval/tasks/task.h"
#include "models/open_model.h"

namespace sinter::eval {
namespace {

constexpr const char* kTask = R"(task = "capitals"
kind = "multiple_choice"
context = "The capital of {{country}} is"
choices = "{{cities}}"
target = "right"
metrics = ["acc"]
[data]
test = "capitals.jsonl"
)";

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

Task one_task(const std::string& text) {
  TaskSet set;
  read_task_file(text, "capitals.toml", set);
  return set.tasks.at(set.order.at(0));
}

std::string scratch(const std::string& name, const std::string& content) {
  const std::string folder = testing::TempDir() + "sinter_eval_tasks";
  const std::string path = folder + "/" + name;
  base::create_folders(path.substr(0, path.rfind('/')));
  base::write_file_atomic(path, content);
  return folder;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(TaskFile, ATaskOfTenLinesAsksItsQuestions) {
  const std::string folder =
      scratch("capitals.jsonl", "{\"country\": \"France\", \"cities\": [\"Rome\", \"Paris\"], \"right\": 1}\n");
  const Task task = one_task(kTask);
  RunOptions options;
  options.data_folder = folder;
  const TaskRun run = prepare_task(task, options);
  ASSERT_EQ(run.samples.size(), 1u);
  const Question& q = run.samples[0].question;
  EXPECT_EQ(q.contexts[0], "The capital of France is");
  EXPECT_EQ(q.continuations, (std::vector<std::string>{" Rome", " Paris"}));
  EXPECT_EQ(q.gold, 1);
}

TEST(TaskFile, DataAreFoundUnderOtherEndingsAndOtherNames) {
  const std::string folder = scratch("towns/right/rows.csv", "country,cities,right\nFrance,\"Rome\",0\n");
  scratch("towns/data/valid-00000-of-00001.parquet", "x");
  scratch("towns/other.tsv", "x");
  auto found = [&](const std::vector<std::string>& names) {
    const std::string path = find_documents(names, folder + "/towns");
    return path.empty() ? path : path.substr(folder.size() + 7);
  };
  EXPECT_EQ(found({"right/rows.jsonl"}), "right/rows.csv");
  EXPECT_EQ(found({"valid.jsonl"}), "data/valid-00000-of-00001.parquet");
  EXPECT_EQ(found({"none.jsonl", "other.tsv"}), "other.tsv");
  EXPECT_EQ(found({"none.jsonl", "nor/this.csv"}), "");
  std::string text = kTask;
  text.replace(text.find("\"capitals.jsonl\""), 16, "[\"gone.jsonl\", \"towns/right/rows.csv\"]");
  text.replace(text.find("\"{{cities}}\""), 12, "\"{{[cities, country]}}\"");
  RunOptions options;
  options.data_folder = folder;
  EXPECT_EQ(prepare_task(one_task(text), options).samples[0].question.choices,
            (std::vector<std::string>{"Rome", "France"}));
  std::string gone = kTask;
  gone.replace(gone.find("capitals.jsonl"), 14, "gone.jsonl");
  const std::string error = error_of([&] { load_split(one_task(gone), "test", folder); });
  EXPECT_TRUE(contains(error, "gone.jsonl") && contains(error, "another ending")) << error;
}

TEST(TaskFile, UnknownKeysAreRefusedWithTheNearestName) {
  std::string text = kTask;
  text.replace(text.find("choices"), 7, "choises");
  const std::string error = error_of([&] { one_task(text); });
  EXPECT_TRUE(contains(error, "capitals.toml") && contains(error, "choi")) << error;
  EXPECT_TRUE(contains(error_of([&] { one_task(std::string("metric = 3\n") + kTask); }), "did you mean 'metrics'"));
}

TEST(TaskFile, WrongTypesNameTheKey) {
  const std::string error = error_of([] { one_task(std::string(kTask) + "[few_shot]\ncount = \"five\"\n"); });
  EXPECT_TRUE(contains(error, "few_shot.count") && contains(error, "whole number")) << error;
}

TEST(TaskData, ABrokenLineNamesFileAndLine) {
  const std::string folder = scratch("capitals.jsonl", "{\"country\": \"France\"}\n{\"country\": \n");
  RunOptions options;
  options.data_folder = folder;
  const Task task = one_task(kTask);
  const std::string error = error_of([&] { prepare_task(task, options); });
  EXPECT_TRUE(contains(error, "capitals.jsonl', line 2") && contains(error, "not valid JSON")) << error;
}

TEST(TaskData, AMissingFieldNamesFileLineAndField) {
  const std::string folder = scratch(
      "capitals.jsonl",
      "{\"country\": \"France\", \"cities\": [\"Rome\"], \"right\": 0}\n\n{\"country\": \"Spain\", \"right\": 0}\n");
  RunOptions options;
  options.data_folder = folder;
  const Task task = one_task(kTask);
  const std::string error = error_of([&] { prepare_task(task, options); });
  EXPECT_TRUE(contains(error, "capitals.jsonl', line 3") && contains(error, "'cities' is undefined")) << error;
  EXPECT_TRUE(contains(error, "the document has country, right") && !contains(error, "chat template")) << error;
}

TEST(TaskData, CsvCellsMayHoldQuotesAndNewlines) {
  const std::string folder = scratch("t.csv", "a,b\n\"x, \"\"y\"\"\nz\",2\nplain,3\n");
  const DocumentSet set = read_documents(folder + "/t.csv");
  ASSERT_EQ(set.size(), 2u);
  EXPECT_EQ(value_text(*find_field(set.documents[0], "a")), "x, \"y\"\nz");
  EXPECT_EQ(set.lines[1], 4);
  EXPECT_TRUE(contains(error_of([&] { read_documents(scratch("u.csv", "a,b\n1\n") + "/u.csv"); }), "line 2"));
}

TEST(TaskFile, EveryShippedTaskParses) { EXPECT_GE(shipped_tasks().tasks.size(), 70u); }

TEST(PythonRegexTest, MatchesLikePython) {
  EXPECT_EQ(PythonRegex(R"(\[.*?\])").replace("a [b] c [d]e", ""), "a  c e");
  EXPECT_EQ(PythonRegex("x*").replace("axb", "-"), "-a--b-");  // Python 3.7 and later
  EXPECT_EQ(PythonRegex("(a)|(b)").find_all("ba")[0].groups, (std::vector<std::string>{"", "b"}));
  EXPECT_EQ(PythonRegex(",").split("a,,b"), (std::vector<std::string>{"a", "", "b"}));
}

TEST(LogSoftmax, AgreesWithDoubles) {
  for (size_t n : {1u, 7u, 513u, 50304u}) {
    std::vector<float> x(n);
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += std::exp(double(x[i] = 20 * std::sin(0.37f * float(i)) - float(i % 97)));
    const LogitRow row = read_logits(x.data(), n);
    EXPECT_NEAR(row.log_sum, std::log(sum), 2e-6) << n;
    EXPECT_EQ(row.max, *std::max_element(x.begin(), x.end()));
  }
}

TEST(ScorerTest, SharedBeginningsGiveTheSameBits) {
  const std::string folder = base::source_dir() + "/tests/golden/eval/models/tiny-gpt2";
  const models::OpenModel model = models::open_model(folder, {core::parse_device("cpu"), core::DType::f32, false});
  std::vector<TokenPair> requests;
  for (int i = 0; i < 40; ++i) {
    TokenPair pair;
    for (int t = 0; t < 5 + 3 * (i / 4); ++t) pair.context.push_back(100 + t * (i / 8 + 1));
    for (int t = 0; t <= i % 4; ++t) pair.continuation.push_back(200 + 7 * i + t);
    requests.push_back(pair);
  }
  Scorer shared(*model.transformer, {.batch_tokens = 100, .block_size = 4}),
      apart(*model.transformer, {.shares_prefixes = false});
  const std::vector<Score> a = shared.score(requests), b = apart.score(requests);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].log_likelihood, b[i].log_likelihood) << i;
    EXPECT_EQ(a[i].is_greedy, b[i].is_greedy) << i;
  }
  EXPECT_LT(2 * shared.stats().computed_tokens, apart.stats().computed_tokens);
}

}  // namespace
}  // namespace sinter::eval
