#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/threads.h"
#include "eval/checkers/bfcl.h"
#include "eval/checkers/ifeval.h"
#include "eval/checkers/math.h"
#include "eval/checkers/math_verify/compare.h"
#include "eval/golden/golden.h"
#include "eval/language/sentences.h"
#include "eval/metrics/filters.h"
#include "eval/metrics/metrics.h"
#include "eval/sandbox/sandbox.h"
#include "eval/tasks/prompt.h"

namespace sinter::eval {
namespace {

using Json = nlohmann::ordered_json;
namespace jinja = tokenizer::jinja;

// Hand-made answers through the filters of gsm8k and gsm8k_cot.
std::vector<VerifyCheck> verify_gsm8k_answers(const Json& file) {
  CaseCounter filtered("gsm8k answers filtered"), verdicts("gsm8k answers verdicts");
  for (const Json& sample : file.at("samples")) {
    auto document = jinja::make_dict();
    document->set(Value("answer"), Value(sample.at("target").get<std::string>()));
    for (const Json& answer : sample.at("answers")) {
      for (const char* name : {"gsm8k", "gsm8k_cot"}) {
        const Task& task = shipped_tasks().tasks.at(name);
        const std::string wanted = task.target.text(Value(document));
        const std::string text = cut_at_stops(answer.at("raw"), task.generation.until);
        for (const AnswerFilter& filter : task.filters) {
          const std::vector<std::string> got = apply_filter(filter, {text});
          const Json& golden = answer.at(name).at(filter.name);
          filtered.expect(got[0] == golden[0].get<std::string>(),
                          fmt::format("{} {} of \"{}\": \"{}\"", name, filter.name, text, got[0]));
          verdicts.expect(text_metrics(task, wanted, got)[0].value == golden[1].get<double>(),
                          fmt::format("{} {} of \"{}\"", name, filter.name, text));
        }
      }
    }
  }
  std::vector<VerifyCheck> checks{filtered.check(), verdicts.check()};
  if (file.contains("gsm8k_cot_8_shot_context")) checks.push_back(verify_gsm8k_cot_prompt(file));
  return checks;
}

// Programs in the sandbox, many at once: each mostly waits for its interpreter.
void run_programs(const std::vector<std::pair<std::string, double>>& programs, CaseCounter& counter) {
  std::vector<char> passed(programs.size());
  base::parallel_for(static_cast<int64_t>(programs.size()), 1, [&](int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) {
      passed[static_cast<size_t>(i)] = run_python(programs[static_cast<size_t>(i)].first).passed;
    }
  });
  for (size_t i = 0; i < programs.size(); ++i) {
    counter.expect(passed[i] == (programs[i].second == 1.0), programs[i].first.substr(0, 200));
  }
}

VerifyCheck sandbox_missing(const std::string& name) {
  return {name + " programs", "not run", 0, 0, "programs were not run: " + sandbox_problem()};
}

// The tests of HumanEval by task, where the data set lies beside the golden folder; else none.
std::map<std::string, std::string> load_tests(const std::string& folder) {
  std::map<std::string, std::string> tests;
  const std::string path = data_set_file(folder, "humaneval/HumanEval.jsonl.gz");
  if (path.empty()) return tests;
  for (const TaskDocument& document : read_documents(path).documents) {
    tests[value_text(*find_field(document, "task_id"))] = value_text(*find_field(document, "test"));
  }
  return tests;
}

using Programs = std::vector<std::pair<std::string, double>>;  // and whether each passes

// humaneval_instruct: what stands before the first fence goes behind the prompt.
void add_instruct_programs(const Json& file, const std::map<std::string, std::string>& tests, CaseCounter& cuts,
                           Programs& programs) {
  const Task& task = shipped_tasks().tasks.at("humaneval_instruct");
  std::map<std::string, Json> documents;
  for (const Json& sample : file.at("samples")) {
    const std::string id = sample.at("task_id"), tail = sample.at("target_tail");  // "\ncheck(NAME)"
    const auto test = tests.find(id);
    documents[id] = {{"prompt", sample.at("prompt")},
                     {"test", test == tests.end() ? "" : test->second},
                     {"entry_point", tail.substr(7, tail.size() - 8)}};
  }
  for (const Json& sample : file.value("instruct", Json::array())) {
    const auto found = documents.find(sample.at("task_id"));
    if (found == documents.end()) continue;
    for (const Json& completion : sample.at("completions")) {
      const std::string answer = cut_at_stops(completion.at("raw"), task.generation.until);
      const std::string program = task.program.text(jinja::from_json(found->second), {{"answer", Value(answer)}});
      const std::string prompt = found->second["prompt"], kept = completion.at("program_after_prompt");
      cuts.expect(program.starts_with(prompt + kept + "\n"), "instruct: " + answer.substr(0, 80));
      if (!tests.empty()) programs.emplace_back(program, completion.at("pass@1"));
    }
  }
}

std::vector<VerifyCheck> verify_humaneval(const std::string& folder, const Json& file) {
  const std::map<std::string, std::string> tests = load_tests(folder);
  CaseCounter cuts("humaneval cut at stops"), chances("pass@k"), programs("humaneval programs");
  const auto until = file.at("settings").at("generation_kwargs").at("until").get<std::vector<std::string>>();
  Programs runs;
  for (const Json& sample : file.at("samples")) {
    for (const Json& completion : sample.at("completions")) {
      const std::string raw = completion.at("raw"), cut = cut_at_stops(raw, until);
      cuts.expect(cut == (completion.at("cut").is_null() ? raw : completion["cut"].get<std::string>()),
                  raw.substr(0, 80));
      const auto test = tests.find(sample.at("task_id"));
      if (test == tests.end()) continue;
      runs.emplace_back(sample.at("prompt").get<std::string>() + cut + "\n" + test->second +
                            sample.at("target_tail").get<std::string>(),
                        completion.at("pass@1"));
    }
  }
  add_instruct_programs(file, tests, cuts, runs);
  for (const Json& row : file.at("arithmetic_n_c_k_value")) {
    chances.expect(std::abs(pass_at_k(row[0], row[1], row[2]) - row[3].get<double>()) < 1e-12, row.dump());
  }
  for (const Json& row : file.at("pass_at_k")) {
    for (const auto& [name, value] : row.at("metrics").items()) {
      const int64_t k = std::stoll(name.substr(name.find('@') + 1));
      chances.expect(std::abs(pass_at_k(row.at("n"), row.at("c"), k) - value.get<double>()) < 1e-12, row.dump());
    }
  }
  if (file.contains("pass_at_k_mean")) {
    for (const auto& [name, wanted] : file["pass_at_k_mean"].items()) {
      std::vector<double> values;
      for (const Json& row : file["pass_at_k"]) {
        values.push_back(pass_at_k(row.at("n"), row.at("c"), std::stoll(name.substr(name.find('@') + 1))));
      }
      chances.expect(std::abs(mean_of(values) - wanted.get<double>()) < 1e-12, "mean " + name);
    }
  }
  std::vector<VerifyCheck> checks{cuts.check(), chances.check(), verify_humaneval_prompts(file)};
  if (runs.empty()) {
    checks.push_back({"humaneval programs", "not run", 0, 0,
                      "programs were not run: HumanEval.jsonl.gz, which has their tests, is not beside the folder"});
    return checks;
  }
  if (!sandbox_problem().empty()) {
    checks.push_back(sandbox_missing("humaneval"));
    return checks;
  }
  run_programs(runs, programs);
  checks.push_back(programs.check());
  return checks;
}

std::vector<VerifyCheck> verify_mbpp(const std::string& folder, const Json& file) {
  const VerifyCheck prompts = verify_mbpp_prompts(folder, file);
  if (!sandbox_problem().empty()) return {prompts, sandbox_missing("mbpp")};
  CaseCounter programs("mbpp programs");
  const auto until = file.at("settings").at("generation_kwargs").at("until").get<std::vector<std::string>>();
  Programs runs;
  for (const Json& sample : file.at("samples")) {
    for (const Json& completion : sample.at("completions")) {
      runs.emplace_back(cut_at_stops(completion.at("raw"), until) + "\n" + sample.at("target").get<std::string>(),
                        completion.at("pass_at_1"));
    }
  }
  run_programs(runs, programs);
  return {prompts, programs.check()};
}

std::vector<VerifyCheck> verify_math(const Json& file) {
  CaseCounter stripped("math strip_string"), boxes("math boxed"), hendrycks("math hendrycks verdicts");
  CaseCounter normal("math minerva normalize"), answers("math minerva answers"), minerva("math minerva verdicts");
  CaseCounter verified("math math_verify verdicts");
  for (const Json& c : file.at("strip_string")) {
    const auto got = strip_answer(c.at("in"));
    stripped.expect(got ? c.at("out").is_string() && c.at("out").get<std::string>() == *got : c.at("out").is_object(),
                    c.dump() + (got ? " got " + *got : ""));
  }
  for (const Json& c : file.at("boxed")) {
    const auto box = last_boxed(c.at("in"));
    boxes.expect(box ? c.at("last_boxed").is_string() && c.at("last_boxed").get<std::string>() == *box
                     : c.at("last_boxed").is_null(),
                 c.dump());
    const auto inner = box ? unbox(*box) : std::nullopt;
    boxes.expect(inner ? c.at("unboxed").is_string() && c.at("unboxed").get<std::string>() == *inner
                       : c.at("unboxed").is_object(),
                 c.dump());
  }
  for (const Json& c : file.at("minerva_normalize"))
    normal.expect(minerva_normalize(c.at("in")) == c.at("out").get<std::string>(), c.dump());
  for (const Json& c : file.at("minerva_final_answer"))
    answers.expect(minerva_answer(c.at("in")) == c.at("out").get<std::string>(), c.dump());
  for (const Json& c : file.at("equivalence")) {
    hendrycks.expect(hendrycks_equal(c.at("a"), c.at("b")) == c.at("hendrycks").get<bool>(), c.dump());
    minerva.expect(
        minerva_equal(minerva_normalize(c.at("a")), minerva_normalize(c.at("b"))) == c.at("minerva").get<bool>(),
        c.dump());
    auto formula = [&](const char* key) { return "$" + c.at(key).get<std::string>() + "$"; };
    verified.expect(math_verified(formula("a"), formula("b")) == c.at("math_verify").get<bool>(), c.dump());
  }
  for (const Json& sample : file.at("samples")) {
    const std::string wanted = unbox(last_boxed(sample.at("solution")).value_or("")).value_or("");
    for (const Json& c : sample.at("candidates")) {
      const std::string text = c.at("text");
      hendrycks.expect(hendrycks_equal(hendrycks_answer(text), wanted) == (c.at("hendrycks") == 1), c.dump());
      minerva.expect(
          minerva_equal(minerva_normalize(minerva_answer(text)), minerva_normalize(wanted)) == (c.at("minerva") == 1),
          c.dump() + " for " + wanted);
      verified.expect(math_verified(sample.at("solution"), text) == (c.at("math_verify") == 1),
                      c.dump() + " for " + wanted);
    }
  }
  return {stripped.check(), boxes.check(),   hendrycks.check(), normal.check(),
          answers.check(),  minerva.check(), verified.check(),  verify_math_prompts(file)};
}

double mean_error(const std::vector<double>& values) {
  return sample_deviation(values) / std::sqrt(static_cast<double>(values.size()));
}

// Verdicts of responses: of each as a whole and of each instruction.
struct IfevalTotals {
  std::vector<double> strict, loose, strict_instructions, loose_instructions;

  void add(const std::vector<double>& strict_verdicts, const std::vector<double>& loose_verdicts) {
    auto hold = [](const std::vector<double>& all) {
      return std::ranges::all_of(all, [](double v) { return v == 1; });
    };
    strict.push_back(hold(strict_verdicts) ? 1 : 0);
    loose.push_back(hold(loose_verdicts) ? 1 : 0);
    strict_instructions.insert(strict_instructions.end(), strict_verdicts.begin(), strict_verdicts.end());
    loose_instructions.insert(loose_instructions.end(), loose_verdicts.begin(), loose_verdicts.end());
  }
  void compare(const Json& wanted, const std::string& name, CaseCounter& counter) const {
    const std::map<std::string, double> own{{"prompt_level_strict_acc", mean_of(strict)},
                                            {"prompt_level_strict_acc_stderr", mean_error(strict)},
                                            {"inst_level_strict_acc", mean_of(strict_instructions)},
                                            {"prompt_level_loose_acc", mean_of(loose)},
                                            {"prompt_level_loose_acc_stderr", mean_error(loose)},
                                            {"inst_level_loose_acc", mean_of(loose_instructions)}};
    for (const auto& [key, value] : own) {
      counter.expect(!wanted.contains(key) || std::abs(wanted[key].get<double>() - value) < 1e-9,
                     fmt::format("{} {} is {}", name, key, value));
    }
  }
};

std::vector<VerifyCheck> verify_ifeval(const Json& file) {
  CaseCounter strict("ifeval strict"), loose("ifeval loose"), units("ifeval checkers"), counts("ifeval counted");
  CaseCounter aggregated("ifeval aggregated");
  IfevalTotals first_responses, all_responses;
  auto compare = [](CaseCounter& counter, bool verdict, bool wanted, const std::string& what) {
    counter.expect(verdict == wanted, what);
  };
  for (const Json& sample : file.at("samples")) {
    for (const Json& response : sample.at("responses")) {
      const std::string text = response.at("response");
      std::vector<double> strictly, loosely;
      for (size_t i = 0; i < sample.at("instruction_id_list").size(); ++i) {
        const std::string id = sample["instruction_id_list"][i];
        const Value arguments = jinja::from_json(sample.at("kwargs")[i]);
        const std::string what = id + " " + sample["kwargs"][i].dump() + " \"" + text.substr(0, 100) + "\"";
        strictly.push_back(follows_instruction(id, arguments, text) ? 1 : 0);
        loosely.push_back(follows_loosely(id, arguments, text) ? 1 : 0);
        compare(strict, strictly.back() == 1, response.at("strict")[i], what);
        compare(loose, loosely.back() == 1, response.at("loose")[i], what);
      }
      all_responses.add(strictly, loosely);
      if (&response == &sample["responses"].front()) first_responses.add(strictly, loosely);
    }
  }
  for (const Json& unit : file.at("units")) {
    compare(units,
            follows_instruction(unit.at("instruction"), jinja::from_json(unit.at("kwargs")), unit.at("response")),
            unit.at("follows"), unit.dump());
  }
  for (const Json& c : file.at("counted")) {
    const std::string text = c.at("text");
    counts.expect(split_sentences(text).size() == c.at("sentences").get<size_t>(),
                  fmt::format("{} sentences in {}", split_sentences(text).size(), c.dump()));
    if (c.contains("word_tokenize")) {
      counts.expect(tokenize_words(text) == c["word_tokenize"].get<std::vector<std::string>>(), c.dump());
    }
  }
  std::vector<VerifyCheck> checks{strict.check(), loose.check(), units.check(), counts.check()};
  if (file.contains("aggregated")) {
    first_responses.compare(file["aggregated"].at("first_responses"), "first_responses", aggregated);
    all_responses.compare(file["aggregated"].at("all_responses"), "all_responses", aggregated);
    checks.push_back(aggregated.check());
  }
  return checks;
}

std::vector<VerifyCheck> verify_bfcl(const Json& file) {
  CaseCounter verdicts("bfcl verdicts");
  for (const Json& c : file.at("cases")) {
    const Value functions = jinja::from_json(c.at("function")), truth = jinja::from_json(c.at("ground_truth"));
    for (const Json& output : c.at("outputs")) {
      const std::string text = output.at("text");
      const bool got = calls_match(functions, decode_calls(text), c["ground_truth"].is_null() ? nullptr : &truth,
                                   c.at("category"), output.value("underscore_names", false));
      verdicts.expect(
          got == output.at("valid").get<bool>(),
          fmt::format("{} {}: {}", c.at("id").dump(), output.value("why", std::string()), text.substr(0, 120)));
    }
  }
  return {verdicts.check()};
}

// Prompts of MGSM over documents that the file holds.
std::vector<VerifyCheck> verify_mgsm(const Json& file) {
  CaseCounter prompts("mgsm prompts"), settings("mgsm settings");
  std::map<std::pair<std::string, int64_t>, std::unique_ptr<PromptBuilder>> builders;
  std::map<std::string, std::pair<DocumentSet, DocumentSet>> documents;  // train, test
  for (const auto& [language, splits] : file.at("documents").items()) {
    auto& [train, test] = documents[language];
    for (auto* part : {&train, &test}) {
      for (const Json& row : splits.at(part == &train ? "train" : "test")) {
        part->documents.push_back(jinja::from_json(row));
        part->lines.push_back(static_cast<int64_t>(part->size()));
      }
    }
  }
  for (const Json& sample : file.at("samples")) {
    const std::string name = sample.at("task");
    const Task& task = shipped_tasks().tasks.at(name);
    const int64_t shots = sample.at("num_fewshot");
    auto& builder = builders[{name, shots}];
    const auto& [train, test] = documents.at(name.substr(name.rfind('_') + 1));
    PromptOptions options;
    options.num_few_shot = shots;
    options.seed = sample.at("seed").get<uint64_t>();
    if (!builder) builder = std::make_unique<PromptBuilder>(task, test, train, options);
    const Question question = builder->next();
    prompts.expect(question.contexts[0] == sample.at("context").get<std::string>(),
                   name + ": " + question.contexts[0].substr(0, 200));
    prompts.expect(question.target == sample.at("target").get<std::string>(), name + ": target " + question.target);
    if (!sample.contains("until")) continue;
    settings.expect(task.generation.until == sample["until"].get<std::vector<std::string>>(), name + ": until");
    settings.expect(task.target_delimiter == sample.at("target_delimiter").get<std::string>(), name + ": delimiter");
    for (size_t f = 0; f < sample.at("filters").size(); ++f) {
      settings.expect(
          f < task.filters.size() && task.filters[f].name == sample["filters"][f].at("name").get<std::string>(),
          name + ": filters");
    }
  }
  return {prompts.check(), settings.check()};
}

}  // namespace

std::vector<VerifyCheck> verify_answers(const std::string& folder, const std::string& name, const Json& file) {
  if (name == "gsm8k_answers") return verify_gsm8k_answers(file);
  if (name == "humaneval") return verify_humaneval(folder, file);
  if (name == "mbpp") return verify_mbpp(folder, file);
  if (name == "mgsm") return verify_mgsm(file);
  if (name == "math") return verify_math(file);
  if (name == "ifeval") return verify_ifeval(file);
  if (name == "bfcl") return verify_bfcl(file);
  return {not_checked(name, fmt::format("{}.json, which is of no known form", name))};
}

}  // namespace sinter::eval
