// A conversation with a model: by its chat template where it has one, else one growing text that the model continues.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace sinter::cli {

class Conversation {
 public:
  // The tokenizer must outlive it. `system` is the system message, or the text's beginning without a template.
  Conversation(std::optional<tokenizer::ChatTemplate> chat, const tokenizer::Tokenizer& tokenizer, std::string system);

  bool has_template() const { return chat_.has_value(); }
  const std::string& system() const { return system_; }
  bool is_empty() const { return turns_.empty(); }
  void reset() { turns_.clear(); }
  void set_system(std::string text) { system_ = std::move(text); }

  std::string last_line() const;  // of the user; "" where there is none

  void add_line(const std::string& text) { turns_.push_back({true, text}); }
  void add_answer(const std::string& text) { turns_.push_back({false, text}); }
  // Forgets the last line, and what was answered to it.
  void take_back();
  // Forgets the last answer, so that prompt() asks for another. False: there is none.
  bool drop_answer();

  // What the model goes on from.
  std::vector<int32_t> prompt() const;
  // One object with "messages" (or "text"), as `tune sft` reads them.
  nlohmann::ordered_json to_json() const;

 private:
  struct Turn {
    bool is_user = false;
    std::string text;
  };
  std::string text() const;
  nlohmann::ordered_json messages() const;

  std::optional<tokenizer::ChatTemplate> chat_;
  const tokenizer::Tokenizer& tokenizer_;
  std::string system_;
  std::vector<Turn> turns_;
};

// "/help me" is {"help", "me"}; nullopt: a line for the model. A line that begins with two slashes is one, too.
struct ChatCommand {
  std::string name, rest;
};
std::optional<ChatCommand> parse_command(const std::string& line);

}  // namespace sinter::cli
