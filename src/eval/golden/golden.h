// Folders of golden answers by lm-evaluation-harness: its prompts, token counts, log-likelihoods, metrics, random draws
// and verdicts, one JSON file per task.
#pragma once
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "eval/verify.h"

namespace sinter::eval {

// Whether the folder has the form: JSON files with "task" and "runs", or fewshot_sampling.json.
bool is_eval_golden(const std::string& folder);
// Checks every case of the folder with our own task files, data readers and models, but for those of api/
// (cli/verify_api.h). Throws base::Error when a file cannot be read.
std::vector<VerifyCheck> verify_eval_golden(const std::string& folder, const VerifyOptions& options);

// How far a log-likelihood may be off.
double allowed_difference(double ll);

// Counts what differs, and keeps the first of it for the note.
class CaseCounter {
 public:
  explicit CaseCounter(std::string name) : name_(std::move(name)) {}
  void expect(bool holds, const std::string& what);
  size_t num_cases() const { return count_; }
  VerifyCheck check() const;

 private:
  std::string name_, first_;
  size_t count_ = 0, num_wrong_ = 0;
};

// The cases that need no model: draws, filters, checkers. `file` is the parsed file, `name` its name without ".json".
// HumanEval's tests and MBPP's questions are read from the data set (data_set_file).
std::vector<VerifyCheck> verify_sampling(const nlohmann::ordered_json& file);
std::vector<VerifyCheck> verify_answers(const std::string& folder, const std::string& name,
                                        const nlohmann::ordered_json& file);

// Prompts that such files hold.
VerifyCheck verify_gsm8k_cot_prompt(const nlohmann::ordered_json& file);
VerifyCheck verify_humaneval_prompts(const nlohmann::ordered_json& file);
VerifyCheck verify_mbpp_prompts(const std::string& folder, const nlohmann::ordered_json& file);
VerifyCheck verify_math_prompts(const nlohmann::ordered_json& file);

// The line about a part of the folder that nothing here checks.
VerifyCheck not_checked(const std::string& name, const std::string& what);

// The chat template of the golden folders.
const char* chatml_template();
// A file of the data sets, in ../../data/eval beside the golden folder or in $SINTER_EVAL_DATA; "" where there is none.
std::string data_set_file(const std::string& folder, const std::string& name);

}  // namespace sinter::eval
