#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "cli/generation_flags.h"
#include "cli/verbs.h"
#include "tokenizer/chat_template.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::string model, system;
  GenerationFlags generation;
  bool shows_stats = false;
};

// A conversation: with the model's chat template where it has one, else one growing text that the model continues.
class Conversation {
 public:
  Conversation(const Flags& flags, const tokenizer::Tokenizer& tokenizer) : flags_(flags), tokenizer_(tokenizer) {
    if (tokenizer::ChatTemplate::exists(flags.model)) chat_ = tokenizer::ChatTemplate::load(flags.model);
    reset();
  }
  bool has_template() const { return chat_.has_value(); }

  void reset() {
    messages_ = nlohmann::ordered_json::array();
    if (!flags_.system.empty()) messages_.push_back({{"role", "system"}, {"content", flags_.system}});
    text_ = chat_ ? "" : flags_.system;
  }

  std::vector<int32_t> prompt_for(const std::string& line) {
    if (!chat_) {
      text_ += line;
      return tokenizer_.encode(text_, {.parse_special = true, .add_special = true});
    }
    messages_.push_back({{"role", "user"}, {"content", line}});
    tokenizer::ChatInput input{.messages = tokenizer::jinja::from_json(messages_), .add_generation_prompt = true};
    return tokenizer_.encode(chat_->render(input), {.parse_special = true});  // the template wrote BOS itself
  }

  void add_answer(const std::string& answer) {
    if (chat_) {
      messages_.push_back({{"role", "assistant"}, {"content", answer}});
    } else {
      text_ += answer;
    }
  }

 private:
  const Flags& flags_;
  const tokenizer::Tokenizer& tokenizer_;
  std::optional<tokenizer::ChatTemplate> chat_;
  nlohmann::ordered_json messages_;
  std::string text_;
};

// Streams the answer to the terminal and returns it.
std::string answer(const Flags& flags, const eval::OpenModel& model, const tokenizer::Tokenizer& tokenizer,
                   tokenizer::StreamDecoder decoder, std::vector<int32_t> prompt, uint64_t turn) {
  engine::Generator generator(*model.transformer, {});
  GenerationFlags own = flags.generation;
  own.sampling.seed += turn;
  std::string text;
  auto show = [&](const std::string& piece) {
    text += piece;
    std::fputs(piece.c_str(), stdout);
    std::fflush(stdout);
  };
  generator.run({make_request(own, std::move(prompt), model.spec, tokenizer)}, [&](size_t, int32_t token) {
    show(decoder.push(token));
    return true;
  });
  show(decoder.finish());
  std::printf("\n");
  if (flags.shows_stats) print_generation_stats(generator.stats());
  return text;
}

void run_chat(const Flags& flags) {
  engine::check_sampling(flags.generation.sampling);
  auto tokenizer = load_tokenizer(flags.generation, flags.model);
  eval::OpenModel model = open_for_generation(flags.generation, flags.model);
  Conversation conversation(flags, tokenizer);
  const bool is_terminal = ::isatty(0) == 1;
  if (is_terminal) {
    std::printf(
        conversation.has_template()
            ? "Talk to the model. /reset forgets the conversation, /exit or Ctrl-D ends it.\n"
            : "This model continues text: begin a story and it goes on. /reset starts anew, /exit or Ctrl-D ends.\n");
  }
  std::string line;
  for (uint64_t turn = 0;; ++turn) {
    if (is_terminal) {
      std::printf("> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line) || line == "/exit") break;
    if (line == "/reset") {
      conversation.reset();
      continue;
    }
    if (line.empty()) continue;
    std::vector<int32_t> prompt = conversation.prompt_for(line);
    tokenizer::StreamDecoder decoder(tokenizer, true);
    if (!conversation.has_template()) {  // the answer goes on in the line
      std::fputs(line.c_str(), stdout);
      decoder.skip(prompt);
    }
    conversation.add_answer(answer(flags, model, tokenizer, std::move(decoder), std::move(prompt), turn));
  }
  if (is_terminal) std::printf("\n");
}

}  // namespace

void add_chat(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("chat", "talk to a model in the terminal");
  verb->add_option("MODEL", flags->model, "model folder")->required();
  verb->add_option("--system", flags->system,
                   "system message (or the text's beginning for a model without a template)");
  verb->add_flag("--stats", flags->shows_stats, "print rates after each answer");
  add_generation_flags(*verb, flags->generation);
  verb->callback([flags] { run_chat(*flags); });
}

}  // namespace sinter::cli
