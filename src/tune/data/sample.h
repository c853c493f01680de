// What tuning learns from, as tokens: samples, preference pairs, labelled samples, prompts.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sinter::tune {

// Who a token comes from. markup: what the template adds around the messages, where that can be told apart.
enum class Role : uint8_t { markup, system, user, assistant, tool, prompt, completion };
const char* role_name(Role role);

// A tokenized text. weights[t] is the weight of the loss of predicting ids[t] from what stands before it; 0: no loss.
struct TokenSegments {
  std::vector<int32_t> ids;    // (T)
  std::vector<Role> roles;     // (T)
  std::vector<float> weights;  // (T); the first one is never used, since nothing predicts that token

  int64_t num_tokens() const { return static_cast<int64_t>(ids.size()); }
  // Tokens with a weight that something stands before.
  int64_t num_supervised() const;
  // Appends tokens of one role and weight.
  void append(const std::vector<int32_t>& more, Role role, float weight);
};

// `origin` names the row a sample was made from: "answers.jsonl:17".

struct Sample {
  TokenSegments tokens;
  std::string origin;
};

// Two answers to one prompt. The tokens of the prompt are the same in both and have no weight.
struct PreferencePair {
  TokenSegments chosen, rejected;
  int64_t prompt_tokens = 0;
  float margin = 0;  // by how much the reward of the chosen one should be larger
  std::string origin;
};

// One answer that is wanted or not.
struct LabelledSample {
  TokenSegments tokens;
  int64_t prompt_tokens = 0;
  bool is_desirable = true;
  std::string origin;
};

// What answers are sampled for.
struct Prompt {
  std::vector<int32_t> ids;
  std::string text;  // as the model reads it
  std::string row;   // the whole row as JSON: what rewards look at
  std::string origin;
};

}  // namespace sinter::tune
