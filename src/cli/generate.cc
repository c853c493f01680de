#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/generation_flags.h"
#include "cli/verbs.h"
#include "engine/batch.h"
#include "engine/prompt.h"
#include "engine/text_stream.h"
#include "models/open_model.h"
#include "tokenizer/tokenizer.h"
#include "train/stop_request.h"

namespace sinter::cli {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string model, prompt, file, input, output;
  GenerationFlags generation;
  bool shows_stats = false;
};

constexpr const char* kShorter = "lower --max-tokens or shorten the prompt";

using Seconds = std::chrono::duration<double>;

void generate_one(const Flags& flags, const models::OpenModel& model, const tokenizer::Tokenizer& tokenizer) {
  engine::Request request =
      make_request(flags.generation, engine::encode_prompt(tokenizer, flags.prompt, model.spec), model.spec, tokenizer);
  engine::Engine engine(*model.transformer, engine_options({&request, 1}, tokenizer, flags.generation.kv_cache));
  engine::TextStream text(tokenizer, request.prompt, request.stop_strings);
  print_bytes(flags.prompt);
  const size_t prompt_tokens = request.prompt.size();
  engine::BatchCallbacks callbacks;
  callbacks.on_token = [&](size_t, int32_t, int32_t token) {
    print_bytes(text.push(token));
    std::fflush(stdout);
    return true;
  };
  const auto start = std::chrono::steady_clock::now();
  const engine::Completion result = engine::run_batch(engine, {std::move(request)}, callbacks)[0][0];
  const double seconds = Seconds(std::chrono::steady_clock::now() - start).count();
  print_bytes(text.finish() + "\n");
  std::fflush(stdout);
  warn_past_positions(model.spec, prompt_tokens + result.tokens.size(), kShorter);
  if (flags.shows_stats) print_generation_stats(engine.stats(), seconds);
}

// A line's key into `out`; the line's own number wins over the flag's.
template <class T>
void take_number(const nlohmann::json& line, const char* key, const std::string& origin, T& out) {
  if (!line.contains(key)) return;
  const nlohmann::json& value = line[key];
  const bool is_right = std::is_integral_v<T> ? value.is_number_integer() : value.is_number();
  SINTER_CHECK(is_right, "{}: \"{}\" is {}; expected a {}", origin, key, value.dump(),
               std::is_integral_v<T> ? "whole number" : "number");
  out = value.get<T>();
}

// "stop": a text or a list of them.
void take_stops(const nlohmann::json& line, const std::string& origin, std::vector<std::string>& stops) {
  if (!line.contains("stop")) return;
  const nlohmann::json& value = line["stop"];
  const nlohmann::json list = value.is_array() ? value : nlohmann::json::array({value});
  stops.clear();
  for (const nlohmann::json& stop : list) {
    SINTER_CHECK(stop.is_string() && !stop.get<std::string>().empty(),
                 "{}: \"stop\" is {}; expected a text or a list of texts", origin, value.dump());
    stops.push_back(stop.get<std::string>());
  }
}

GenerationFlags read_line_flags(const nlohmann::json& line, const std::string& origin, GenerationFlags flags) {
  static const std::vector<std::string> kNames{"prompt",
                                               "max_tokens",
                                               "temperature",
                                               "top_k",
                                               "top_p",
                                               "min_p",
                                               "typical_p",
                                               "repetition_penalty",
                                               "presence_penalty",
                                               "frequency_penalty",
                                               "stop",
                                               "seed"};
  static const std::vector<std::string> kAnswers{"text", "tokens", "finish_reason"};
  // Keys of the caller's own pass through; one that is ours but for a letter is a slip.
  for (const auto& [key, value] : line.items()) {
    SINTER_CHECK(std::find(kAnswers.begin(), kAnswers.end(), key) == kAnswers.end(),
                 "{}: the key \"{}\" is where the answer goes; give your own another name", origin, key);
    if (std::find(kNames.begin(), kNames.end(), key) != kNames.end()) continue;
    for (const std::string& name : kNames) {
      SINTER_CHECK(!base::is_slip(key, name), "{}: there is no key \"{}\"; did you mean '{}'?", origin, key, name);
    }
  }
  take_number(line, "max_tokens", origin, flags.max_tokens);
  take_number(line, "temperature", origin, flags.sampling.temperature);
  take_number(line, "top_k", origin, flags.sampling.top_k);
  take_number(line, "top_p", origin, flags.sampling.top_p);
  take_number(line, "min_p", origin, flags.sampling.min_p);
  take_number(line, "typical_p", origin, flags.sampling.typical_p);
  take_number(line, "repetition_penalty", origin, flags.sampling.repetition_penalty);
  take_number(line, "presence_penalty", origin, flags.sampling.presence_penalty);
  take_number(line, "frequency_penalty", origin, flags.sampling.frequency_penalty);
  take_number(line, "seed", origin, flags.sampling.seed);
  take_stops(line, origin, flags.stops);
  return flags;
}

struct Interrupted {};  // by a signal

struct Batch {
  std::vector<nlohmann::json> lines;
  std::vector<engine::Request> requests;
  std::vector<std::string> origins;  // "file:line"
};

// A line's request; what is wrong with it names the line.
engine::Request read_request(const Flags& flags, const nlohmann::json& line, int64_t number, const std::string& origin,
                             const models::OpenModel& model, const tokenizer::Tokenizer& tokenizer) {
  SINTER_CHECK(line.is_object() && line.contains("prompt") && line["prompt"].is_string(),
               "{}: expected an object with a string \"prompt\"", origin);
  GenerationFlags own = flags.generation;
  // Each line draws its own numbers, so that equal prompts differ unless seeds are given.
  own.sampling.seed += static_cast<uint64_t>(number - 1);
  own = read_line_flags(line, origin, own);
  try {
    check_generation_flags(own);
    return make_request(own, engine::encode_prompt(tokenizer, line["prompt"].get<std::string>(), model.spec),
                        model.spec, tokenizer);
  } catch (const base::Error& e) {  // the file is wrong, not the command line
    base::fail("{}: {}", origin, e.what());
  }
}

// All lines are checked before the first token is made.
Batch read_batch(const Flags& flags, const models::OpenModel& model, const tokenizer::Tokenizer& tokenizer) {
  std::ifstream file;
  if (flags.input != "-") {
    errno = 0;
    file.open(flags.input);
    SINTER_CHECK(file.good(), "cannot open '{}': {}", flags.input, std::strerror(errno));
  }
  std::istream& in = flags.input == "-" ? std::cin : file;
  Batch batch;
  std::string text;
  errno = 0;
  for (int64_t number = 1; std::getline(in, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string origin = fmt::format("{}:{}", flags.input, number);
    nlohmann::json line = base::parse_json(text, origin);
    batch.requests.push_back(read_request(flags, line, number, origin, model, tokenizer));
    batch.origins.push_back(origin);
    batch.lines.push_back(std::move(line));
  }
  SINTER_CHECK(!in.bad(), "cannot read '{}': {}", flags.input, std::strerror(errno));
  SINTER_CHECK(!batch.requests.empty(), "'{}' has no requests; expected lines like {{\"prompt\": \"Once upon\"}}",
               flags.input);
  return batch;
}

// Answers as they come, in the order of the requests: what a run that is cut short has made is there. The file keeps
// what it held before until the first answer replaces it.
class AnswerFile {
 public:
  // "" is standard output. Opened before the work: what has no place to go is lost.
  AnswerFile(const std::string& path, const std::string& input) : path_(path.empty() ? "standard output" : path) {
    if (path.empty()) return;
    std::error_code error;
    if (fs::equivalent(path, input, error))
      base::fail_usage("--output '{}' is the file that --input reads; give the answers another", path);
    file_ = std::fopen(path.c_str(), "a");
    SINTER_CHECK(file_, "cannot create '{}': {}", path, std::strerror(errno));
  }
  ~AnswerFile() {
    if (file_ != stdout) std::fclose(file_);
  }
  AnswerFile(const AnswerFile&) = delete;
  AnswerFile& operator=(const AnswerFile&) = delete;

  void write(const std::string& line) {
    // Only a file can be emptied; a pipe or a device has nothing to keep.
    if (is_untouched_ && file_ != stdout) (void)::ftruncate(::fileno(file_), 0);
    is_untouched_ = false;
    const bool is_written = std::fputs((line + "\n").c_str(), file_) >= 0 && std::fflush(file_) == 0;
    SINTER_CHECK(is_written, "cannot write '{}': {}", path_, std::strerror(errno));
  }

 private:
  std::string path_;
  std::FILE* file_ = stdout;
  bool is_untouched_ = true;
};

std::string answer_line(nlohmann::json line, const engine::Request& request, const engine::Completion& result,
                        const tokenizer::Tokenizer& tokenizer) {
  line["text"] = engine::answer_text(tokenizer, request.prompt, result.tokens, request.stop_strings);
  line["tokens"] = result.tokens.size();
  line["finish_reason"] = result.reason == engine::FinishReason::stop ? "stop" : "length";
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Lines {"prompt": "...", "max_tokens": n, "temperature": t, "seed": s, ...} -> lines with "text" added.
void generate_file(const Flags& flags, const models::OpenModel& model, const tokenizer::Tokenizer& tokenizer) {
  Batch batch = read_batch(flags, model, tokenizer);
  engine::Engine engine(*model.transformer, engine_options(batch.requests, tokenizer, flags.generation.kv_cache));
  for (size_t i = 0; i < batch.requests.size(); ++i) engine.check(batch.requests[i], batch.origins[i]);
  AnswerFile out(flags.output, flags.input);
  base::ProgressLine progress;
  int64_t made = 0;
  const std::string count = counted(static_cast<int64_t>(batch.requests.size()), "request");
  std::map<size_t, std::string> waiting;  // finished answers before which others are still to come
  size_t written = 0, finished = 0, longest = 0;
  const train::StopRequest stop(spec::CheckpointRecipe{});
  engine::BatchCallbacks callbacks;
  callbacks.on_token = [&](size_t, int32_t, int32_t) {
    progress.update(fmt::format("{}, {} answered, {} generated so far", count, finished, counted(++made, "token")));
    if (!stop.reason().empty()) throw Interrupted{};
    return true;
  };
  callbacks.on_completion = [&](size_t i, int32_t, const engine::Completion& result) {
    ++finished;
    longest = std::max(longest, batch.requests[i].prompt.size() + result.tokens.size());
    waiting[i] = answer_line(std::move(batch.lines[i]), batch.requests[i], result, tokenizer);
    for (; waiting.contains(written); ++written) {
      out.write(waiting[written]);
      waiting.erase(written);
    }
  };
  const auto start = std::chrono::steady_clock::now();
  try {
    engine::run_batch(engine, batch.requests, callbacks);
  } catch (const Interrupted&) {
    progress.finish();
    for (const auto& [i, line] : waiting) out.write(line);
    base::fail("{} after {} of {} answers, which are written", stop.reason(), finished, batch.requests.size());
  }
  progress.finish();
  warn_past_positions(model.spec, longest, kShorter);
  if (flags.shows_stats)
    print_generation_stats(engine.stats(), Seconds(std::chrono::steady_clock::now() - start).count());
}

// The prompt as it was given: words, a file, or standard input.
std::string read_prompt(const Flags& flags) {
  if (!flags.file.empty()) return base::read_file(flags.file);
  if (flags.prompt != "-") return flags.prompt;
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

void run_generate(Flags flags) {
  check_generation_flags(flags.generation);
  flags.model = newest_model(flags.model);
  flags.prompt = read_prompt(flags);
  auto tokenizer = load_tokenizer(flags.generation, flags.model);
  models::OpenModel model = open_for_generation(flags.generation, flags.model);
  if (flags.input.empty()) {
    generate_one(flags, model, tokenizer);
  } else {
    generate_file(flags, model, tokenizer);
  }
}

}  // namespace

void add_generate(Command app) {
  auto flags = std::make_shared<Flags>();
  const Command verb = app.add_verb("generate", "continue a prompt, or many from a file at once");
  verb.option("MODEL", &flags->model, "model folder, or a training run's for its newest").required();
  const Option prompt = verb.option("--prompt", &flags->prompt, "text to continue; - reads it from standard input");
  const Option file = verb.option("--file", &flags->file, "file that holds the text to continue").existing_file();
  const Option input = verb.option(
      "--input", &flags->input,
      "JSON lines with \"prompt\" and, where they differ from the options, max_tokens, temperature, top_k, top_p, "
      "min_p, typical_p, repetition_penalty, presence_penalty, frequency_penalty, stop, seed");
  input.excludes(prompt);
  input.excludes(file);
  file.excludes(prompt);
  verb.option("--output", &flags->output, "write the JSON lines here instead of standard output").needs(input);
  verb.flag("--stats", &flags->shows_stats, "print rates to standard error at the end");
  add_generation_flags(verb, flags->generation);
  verb.footer(
      "Examples:\n"
      "  sinter generate models/stories15M --prompt 'Once upon a time' --max-tokens 60\n"
      "  sinter generate runs/mine --file beginning.txt --stop 'The end' --repetition-penalty 1.1\n"
      "  sinter generate models/stories15M --input prompts.jsonl --output answers.jsonl");
  verb.on_run([flags] { run_generate(*flags); });
}

}  // namespace sinter::cli
