#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/conversation.h"
#include "cli/generation_flags.h"
#include "cli/line_editor.h"
#include "cli/verbs.h"
#include "engine/text_stream.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::string model, system;
  GenerationFlags generation;
  bool shows_stats = false;
};

// What the model said, and how long prompt and answer are together.
struct Answer {
  std::string text;
  size_t num_tokens = 0;
  bool was_stopped = false;  // by Ctrl-C
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
      result.was_stopped = InterruptFlag::is_set();
      return !result.was_stopped;
    };
    {
      const QuietKeys quiet;
      engine::run_batch(engine, {std::move(request)}, callbacks);
    }
    InterruptFlag::take();
    show(text.finish());
    if (result.was_stopped) std::printf(" [stopped]");
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
      engine::EngineOptions options = engine_options({&request, 1}, tokenizer_, flags_.generation.kv_cache);
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

constexpr const char* kCommands =
    "  /help            this list\n"
    "  /system TEXT     what the model is told before the conversation; without TEXT: shows it\n"
    "  /regen           another answer to the last line\n"
    "  /undo            forgets the last line and its answer\n"
    "  /save FILE       writes the conversation as one JSON line with \"messages\", as training reads them\n"
    "  /reset           begins a new conversation\n"
    "  /exit            ends the program, as Ctrl-D does\n"
    "Ctrl-C ends the answer that comes, or clears the line. A line that ends with \\ goes on in the next one.\n"
    "A line for the model that begins with a slash: write two.\n";

class Chat {
 public:
  explicit Chat(const Flags& flags)
      : flags_(flags),
        tokenizer_(load_tokenizer(flags.generation, flags.model)),
        model_(open_for_generation(flags.generation, flags.model)),
        conversation_(open_template(flags.model), tokenizer_, flags.system),
        talker_(flags_, model_, tokenizer_),
        editor_(history_path("chat_history")) {}

  void run() {
    // In a pipe Ctrl-C ends the program, as it ends any other.
    std::optional<InterruptFlag> interrupts;
    if (editor_.is_terminal()) {
      interrupts.emplace();
      std::printf("%s /help lists what else there is.\n",
                  conversation_.has_template() ? "Talk to the model."
                                               : "This model continues text: begin a story and it goes on.");
    }
    while (const std::optional<std::string> line = read()) {
      if (line->empty()) continue;
      const std::optional<ChatCommand> command = parse_command(*line);
      if (command ? !obey(*command) : !say(line->starts_with("//") ? line->substr(1) : *line)) return;
    }
    if (editor_.is_terminal()) std::printf("\n");
  }

 private:
  static std::optional<tokenizer::ChatTemplate> open_template(const std::string& folder) {
    if (!tokenizer::ChatTemplate::exists(folder)) return std::nullopt;
    return tokenizer::ChatTemplate::load(folder);
  }

  // A line, or several that end with a backslash; nullopt: the end.
  std::optional<std::string> read() {
    std::string text;
    for (const char* prompt = "> ";; prompt = ". ") {
      const auto line = editor_.read(prompt);
      if (!line) return std::nullopt;
      if (line->was_interrupted) return "";
      if (!line->text.ends_with('\\')) return text + line->text;
      text += line->text.substr(0, line->text.size() - 1) + "\n";
    }
  }

  // False: the program ends.
  bool obey(const ChatCommand& command) {
    static const std::vector<std::string> kNames{"help", "system", "regen", "undo", "save", "reset", "exit", "quit"};
    if (command.name == "exit" || command.name == "quit") return false;
    if (command.name == "help") {
      std::fputs(kCommands, stdout);
    } else if (command.name == "reset") {
      conversation_.reset();
      has_warned_ = false;
    } else if (command.name == "undo") {
      conversation_.take_back();
    } else if (command.name == "regen") {
      if (conversation_.drop_answer()) return answer();
      base::log_warning("/regen: there is no answer yet");
    } else if (command.name == "system") {
      if (command.rest.empty())
        std::printf("%s\n", conversation_.system().empty() ? "(none)" : conversation_.system().c_str());
      if (!command.rest.empty()) conversation_.set_system(command.rest);
    } else if (command.name == "save") {
      save(command.rest);
    } else {
      base::log_warning("there is no /{}{}; /help lists the commands; a line for the model begins with two slashes",
                        command.name, base::did_you_mean(command.name, kNames));
    }
    std::fflush(stdout);
    return true;
  }

  void save(const std::string& path) {
    if (path.empty()) return base::log_warning("/save needs a file: /save talk.jsonl");
    try {
      base::write_file_atomic(
          path, conversation_.to_json().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
      base::log_info("the conversation is in '{}'", path);
    } catch (const base::Error& e) {
      base::log_warning("{}", e.what());
    }
  }

  bool say(const std::string& line) {
    conversation_.add_line(line);
    return answer();
  }

  bool answer() {
    std::vector<int32_t> prompt = conversation_.prompt();
    if (!engine::has_room(model_.spec, prompt.size())) {
      conversation_.take_back();
      base::log_warning("the conversation would have {}, but the model only {}: say less, or /reset to begin a new one",
                        counted(static_cast<int64_t>(prompt.size()), "token"),
                        counted(model_.spec.max_positions, "position"));
      return true;
    }
    const bool goes_on = !conversation_.has_template();  // the answer goes on in the line
    if (goes_on) print_bytes(conversation_.last_line());
    engine::TextStream text(tokenizer_, goes_on ? prompt : std::vector<int32_t>{}, flags_.generation.stops);
    const Answer said = talker_.answer(std::move(text), std::move(prompt), turn_++);
    conversation_.add_answer(said.text);
    if (!has_warned_)
      has_warned_ = warn_past_positions(model_.spec, said.num_tokens, "/reset to begin a new conversation");
    return true;
  }

  const Flags& flags_;
  tokenizer::Tokenizer tokenizer_;
  models::OpenModel model_;
  Conversation conversation_;
  Talker talker_;
  LineEditor editor_;
  uint64_t turn_ = 0;
  bool has_warned_ = false;
};

void run_chat(Flags flags) {
  check_generation_flags(flags.generation);
  flags.model = newest_model(flags.model);
  Chat(flags).run();
}

}  // namespace

void add_chat(Command app) {
  auto flags = std::make_shared<Flags>();
  const Command verb = app.add_verb("chat", "talk to a model in the terminal");
  verb.option("MODEL", &flags->model, "model folder, or a training run's for its newest").required();
  verb.option("--system", &flags->system, "system message (or the text's beginning for a model without a template)");
  verb.flag("--stats", &flags->shows_stats, "print rates after each answer");
  add_generation_flags(verb, flags->generation);
  verb.footer(std::string("While talking:\n") + kCommands +
              "Examples:\n"
              "  sinter chat models/qwen --system 'You answer in one sentence.'\n"
              "  sinter chat runs/mine --temperature 0 --stats");
  verb.on_run([flags] { run_chat(*flags); });
}

}  // namespace sinter::cli
