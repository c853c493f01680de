// Rewards: what an answer is worth, told by rules, by a program that runs in the sandbox, or by one that is asked.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::tune {

// One answer, and the row of the data that its prompt came from.
struct RewardInput {
  std::string_view prompt, completion;
  std::string_view row;  // JSON
  std::span<const int32_t> prompt_ids, ids;
  int64_t tokens = 0;       // of the completion
  bool is_finished = true;  // it ended by itself, not for want of room
};

enum class RewardKind {
  exact,    // 1 where the answer is the row's, white space at the ends aside
  numeric,  // 1 where the last number is the row's
  math,     // 1 where the boxed or last expression has the row's value, by the rules of MATH
  regex,    // 1 where `pattern` is found
  schema,   // 1 where the answer is JSON that `schema` accepts
  length,   // 0, falling to -1 over the last `cache` of `longest` tokens
  code,     // 1 where the answer's program and the row's tests behind it run without an exception, in the sandbox
  program,  // what `command` says
  model,    // the score of a sequence classifier (tune/run/reward_model.h makes it)
};
const std::vector<std::string>& reward_names();
RewardKind parse_reward_kind(std::string_view name);  // throws base::Error with the nearest name

struct RewardOptions {
  RewardKind kind = RewardKind::exact;
  double weight = 1;
  std::string field = "answer";      // of the row: the right answer (exact, numeric, math), the tests (code)
  std::string extract;               // regex: its last match (group 1 where there is one) is the answer; no match: 0
  std::string extract_field;         // the same for the row's field
  std::string pattern;               // regex
  std::string schema;                // JSON schema, or the file that holds it
  int64_t longest = 0, cache = 0;    // length
  double seconds = 5;                // code: of one program; program: of one answer
  std::vector<std::string> command;  // program
};

class Reward {
 public:
  virtual ~Reward() = default;
  // A reward for each, in order; NaN where there is none. Throws base::Error for what no later answer would mend: a row
  // without the field, no sandbox, a program that cannot be started or never answers.
  virtual std::vector<double> score(std::span<const RewardInput> inputs) = 0;
};
// Throws base::Error naming the option that is missing or wrong.
std::unique_ptr<Reward> make_reward(const RewardOptions& options);

}  // namespace sinter::tune
