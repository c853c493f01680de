#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/generation_flags.h"
#include "cli/verbs.h"
#include "engine/text_stream.h"
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
    before_ = {messages_, text_};
    if (!chat_) {
      text_ += line;
      return tokenizer_.encode(text_, {.parse_special = true, .add_special = true});
    }
    messages_.push_back({{"role", "user"}, {"content", line}});
    tokenizer::ChatInput input{.messages = tokenizer::jinja::from_json(messages_), .add_generation_prompt = true};
    return tokenizer_.encode(chat_->render(input), {.parse_special = true});  // the template wrote BOS itself
  }

  // Forgets the line of the last prompt_for().
  void take_back() { std::tie(messages_, text_) = before_; }

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
  std::pair<nlohmann::ordered_json, std::string> before_;  // messages and text without the last line
};

// What the model said, and how long prompt and answer are together.
struct Answer {
  std::string text;
  size_t num_tokens = 0;
};

// Answers of one conversation. The engine lives as long, so that what was said before is found in its prefix cache.
class Talker {
 public:
  Talker(const Flags& flags, const models::OpenModel& model, const tokenizer::Tokenizer& tokenizer)
      : flags_(flags), model_(model), tokenizer_(tokenizer) {}

  // Streams the answer to the terminal and returns it.
  Answer answer(engine::TextStream text, std::vector<int32_t> prompt, uint64_t turn) {
    GenerationFlags own = flags_.generation;
    own.sampling.seed += turn;
    Answer result;
    result.num_tokens = prompt.size();
    auto show = [&](const std::string& piece) {
      result.text += piece;
      print_bytes(piece);
      std::fflush(stdout);
    };
    engine::Request request = make_request(own, std::move(prompt), model_.spec, tokenizer_);
    engine::Engine& engine = engine_for(request);
    const engine::EngineStats before = engine.stats();
    const auto start = std::chrono::steady_clock::now();
    engine::BatchCallbacks callbacks;
    callbacks.on_token = [&](size_t, int32_t, int32_t token) {
      ++result.num_tokens;
      show(text.push(token));
      return true;
    };
    engine::run_batch(engine, {std::move(request)}, callbacks);
    show(text.finish());
    std::printf("\n");
    std::fflush(stdout);
    if (flags_.shows_stats) {
      engine::EngineStats stats = engine.stats();
      stats.prompt_tokens -= before.prompt_tokens;
      stats.cached_tokens -= before.cached_tokens;
      stats.output_tokens -= before.output_tokens;
      stats.num_steps -= before.num_steps;
      print_generation_stats(stats, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return result;
  }

 private:
  // One with room for the request; a larger one where the conversation has outgrown it.
  engine::Engine& engine_for(const engine::Request& request) {
    const int64_t needed = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
    if (!engine_ || engine_->max_request_tokens() < needed) {
      engine_.reset();
      engine::EngineOptions options = engine_options({&request, 1}, tokenizer_);
      options.kv_tokens = 2 * needed;
      engine_ = std::make_unique<engine::Engine>(*model_.transformer, options);
    }
    return *engine_;
  }

  const Flags& flags_;
  const models::OpenModel& model_;
  const tokenizer::Tokenizer& tokenizer_;
  std::unique_ptr<engine::Engine> engine_;
};

constexpr const char* kCommands = "/reset forgets the conversation, /exit or Ctrl-D ends it";

void run_chat(const Flags& flags) {
  check_generation_flags(flags.generation);
  auto tokenizer = load_tokenizer(flags.generation, flags.model);
  models::OpenModel model = open_for_generation(flags.generation, flags.model);
  Conversation conversation(flags, tokenizer);
  Talker talker(flags, model, tokenizer);
  const bool is_terminal = ::isatty(0) == 1;
  if (is_terminal) {
    std::printf(
        "%s %s.\n",
        conversation.has_template() ? "Talk to the model." : "This model continues text: begin a story and it goes on.",
        kCommands);
  }
  std::string line;
  bool has_warned = false;
  for (uint64_t turn = 0;; ++turn) {
    if (is_terminal) {
      std::printf("> ");
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line) || line == "/exit") break;
    if (line == "/reset") {
      conversation.reset();
      has_warned = false;
      continue;
    }
    if (line.empty()) continue;
    std::vector<int32_t> prompt = conversation.prompt_for(line);
    if (!engine::has_room(model.spec, prompt.size())) {
      conversation.take_back();
      base::log_warning("the conversation would have {}, but the model only {}: say less, or /reset to begin a new one",
                        counted(static_cast<int64_t>(prompt.size()), "token"),
                        counted(model.spec.max_positions, "position"));
      continue;
    }
    const bool goes_on = !conversation.has_template();  // the answer goes on in the line
    if (goes_on) print_bytes(line);
    engine::TextStream text(tokenizer, goes_on ? prompt : std::vector<int32_t>{}, flags.generation.stops);
    const Answer said = talker.answer(std::move(text), std::move(prompt), turn);
    conversation.add_answer(said.text);
    if (!has_warned)
      has_warned = warn_past_positions(model.spec, said.num_tokens, "/reset to begin a new conversation");
  }
  if (is_terminal) std::printf("\n");
}

}  // namespace

void add_chat(Command app) {
  auto flags = std::make_shared<Flags>();
  const Command verb = app.add_verb("chat", "talk to a model in the terminal");
  verb.option("MODEL", &flags->model, "model folder").required();
  verb.option("--system", &flags->system, "system message (or the text's beginning for a model without a template)");
  verb.flag("--stats", &flags->shows_stats, "print rates after each answer");
  add_generation_flags(verb, flags->generation);
  verb.footer(std::string("While talking: ") + kCommands + ".");
  verb.on_run([flags] { run_chat(*flags); });
}

}  // namespace sinter::cli
