#include "cli/conversation.h"

#include <nlohmann/json.hpp>

namespace sinter::cli {

Conversation::Conversation(std::optional<tokenizer::ChatTemplate> chat, const tokenizer::Tokenizer& tokenizer,
                           std::string system)
    : chat_(std::move(chat)), tokenizer_(tokenizer), system_(std::move(system)) {}

void Conversation::take_back() {
  while (!turns_.empty()) {
    const bool was_user = turns_.back().is_user;
    turns_.pop_back();
    if (was_user) return;
  }
}

std::string Conversation::last_line() const {
  for (size_t i = turns_.size(); i-- > 0;) {
    if (turns_[i].is_user) return turns_[i].text;
  }
  return "";
}

bool Conversation::drop_answer() {
  if (turns_.empty() || turns_.back().is_user) return false;
  turns_.pop_back();
  return true;
}

std::string Conversation::text() const {
  std::string text = system_;
  for (const Turn& turn : turns_) text += turn.text;
  return text;
}

nlohmann::ordered_json Conversation::messages() const {
  auto messages = nlohmann::ordered_json::array();
  if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
  for (const Turn& turn : turns_)
    messages.push_back({{"role", turn.is_user ? "user" : "assistant"}, {"content", turn.text}});
  return messages;
}

std::vector<int32_t> Conversation::prompt() const {
  if (!chat_) return tokenizer_.encode(text(), {.parse_special = true, .add_special = true});
  const tokenizer::ChatInput input{.messages = tokenizer::jinja::from_json(messages()), .add_generation_prompt = true};
  return tokenizer_.encode(chat_->render(input), {.parse_special = true});  // the template wrote BOS itself
}

nlohmann::ordered_json Conversation::to_json() const {
  if (!chat_) return {{"text", text()}};
  return {{"messages", messages()}};
}

std::optional<ChatCommand> parse_command(const std::string& line) {
  if (!line.starts_with('/') || line.starts_with("//")) return std::nullopt;
  const size_t space = line.find_first_of(" \t");
  ChatCommand command{line.substr(1, space == std::string::npos ? space : space - 1), {}};
  if (space != std::string::npos)
    command.rest = line.substr(std::min(line.find_first_not_of(" \t", space), line.size()));
  while (!command.rest.empty() && (command.rest.back() == ' ' || command.rest.back() == '\t')) command.rest.pop_back();
  return command;
}

}  // namespace sinter::cli
