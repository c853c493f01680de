#include <unistd.h>

#include <algorithm>
#include <cerrno>
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
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/generation_flags.h"
#include "cli/verbs.h"
#include "engine/generator.h"
#include "eval/model.h"
#include "tokenizer/tokenizer.h"
#include "train/stop_request.h"

namespace sinter::cli {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string model, prompt, input, output;
  GenerationFlags generation;
  bool shows_stats = false;
};

constexpr const char* kShorter = "lower --max-tokens or shorten the prompt";

std::vector<int32_t> encode_prompt(const tokenizer::Tokenizer& tokenizer, const std::string& text,
                                   const spec::ModelSpec& spec) {
  std::vector<int32_t> ids = tokenizer.encode(text, {.parse_special = true, .add_special = true});
  if (ids.empty()) {  // an empty prompt still needs something to follow
    int64_t first = spec.bos_token >= 0 ? spec.bos_token : (spec.eos_tokens.empty() ? -1 : spec.eos_tokens[0]);
    SINTER_CHECK(first >= 0, "the prompt is empty and the model names no BOS or EOS token to begin with");
    ids.push_back(static_cast<int32_t>(first));
  }
  return ids;
}

void generate_one(const Flags& flags, const eval::OpenModel& model, const tokenizer::Tokenizer& tokenizer) {
  engine::Generator generator(*model.transformer, {});
  tokenizer::StreamDecoder decoder(tokenizer, true);
  engine::Request request =
      make_request(flags.generation, encode_prompt(tokenizer, flags.prompt, model.spec), model.spec, tokenizer);
  decoder.skip(request.prompt);
  print_bytes(flags.prompt);
  const engine::Result result = generator.run({request}, [&](size_t, int32_t token) {
    print_bytes(decoder.push(token));
    std::fflush(stdout);
    return true;
  })[0];
  std::printf("%s\n", decoder.finish().c_str());
  std::fflush(stdout);
  warn_past_positions(model.spec, request.prompt.size() + result.tokens.size(), kShorter);
  if (flags.shows_stats) print_generation_stats(generator.stats());
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

GenerationFlags read_line_flags(const nlohmann::json& line, const std::string& origin, GenerationFlags flags) {
  static const std::vector<std::string> kNames{"prompt", "max_tokens", "temperature", "top_k",
                                               "top_p",  "min_p",      "seed"};
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
  take_number(line, "seed", origin, flags.sampling.seed);
  return flags;
}

struct Interrupted {};  // by a signal

struct Batch {
  std::vector<nlohmann::json> lines;
  std::vector<engine::Request> requests;
};

// A line's request; what is wrong with it names the line.
engine::Request read_request(const Flags& flags, const nlohmann::json& line, int64_t number, const std::string& origin,
                             const eval::OpenModel& model, const tokenizer::Tokenizer& tokenizer) {
  SINTER_CHECK(line.is_object() && line.contains("prompt") && line["prompt"].is_string(),
               "{}: expected an object with a string \"prompt\"", origin);
  GenerationFlags own = flags.generation;
  // Each line draws its own numbers, so that equal prompts differ unless seeds are given.
  own.sampling.seed += static_cast<uint64_t>(number - 1);
  own = read_line_flags(line, origin, own);
  try {
    check_generation_flags(own);
    return make_request(own, encode_prompt(tokenizer, line["prompt"], model.spec), model.spec, tokenizer);
  } catch (const base::Error& e) {  // the file is wrong, not the command line
    base::fail("{}: {}", origin, e.what());
  }
}

// All lines are checked before the first token is made.
Batch read_batch(const Flags& flags, const eval::OpenModel& model, const tokenizer::Tokenizer& tokenizer,
                 const engine::Generator& generator) {
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
    generator.check(batch.requests.back(), origin);
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

std::string answer_line(nlohmann::json line, const engine::Request& request, const engine::Result& result,
                        const tokenizer::Tokenizer& tokenizer) {
  line["text"] = continuation_text(tokenizer, request.prompt, result.tokens);
  line["tokens"] = result.tokens.size();
  line["finish_reason"] = result.reason == engine::FinishReason::stop ? "stop" : "length";
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Lines {"prompt": "...", "max_tokens": n, "temperature": t, "seed": s, ...} -> lines with "text" added.
void generate_file(const Flags& flags, const eval::OpenModel& model, const tokenizer::Tokenizer& tokenizer) {
  engine::Generator generator(*model.transformer, {});
  Batch batch = read_batch(flags, model, tokenizer, generator);
  AnswerFile out(flags.output, flags.input);
  base::ProgressLine progress;
  int64_t made = 0;
  const std::string count = counted(static_cast<int64_t>(batch.requests.size()), "request");
  std::map<size_t, std::string> waiting;  // finished answers before which others are still to come
  size_t written = 0, finished = 0, longest = 0;
  const train::StopRequest stop(spec::CheckpointRecipe{});
  auto on_token = [&](size_t, int32_t) {
    progress.update(fmt::format("{}, {} answered, {} generated so far", count, finished, counted(++made, "token")));
    if (!stop.reason().empty()) throw Interrupted{};
    return true;
  };
  auto on_result = [&](size_t i, const engine::Result& result) {
    ++finished;
    longest = std::max(longest, batch.requests[i].prompt.size() + result.tokens.size());
    waiting[i] = answer_line(std::move(batch.lines[i]), batch.requests[i], result, tokenizer);
    for (; waiting.contains(written); ++written) {
      out.write(waiting[written]);
      waiting.erase(written);
    }
  };
  try {
    generator.run(batch.requests, on_token, on_result);
  } catch (const Interrupted&) {
    progress.finish();
    for (const auto& [i, line] : waiting) out.write(line);
    base::fail("{} after {} of {} answers, which are written", stop.reason(), finished, batch.requests.size());
  }
  progress.finish();
  warn_past_positions(model.spec, longest, kShorter);
  if (flags.shows_stats) print_generation_stats(generator.stats());
}

void run_generate(const Flags& flags) {
  check_generation_flags(flags.generation);
  auto tokenizer = load_tokenizer(flags.generation, flags.model);
  eval::OpenModel model = open_for_generation(flags.generation, flags.model);
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
  verb.option("MODEL", &flags->model, "model folder").required();
  const Option prompt = verb.option("--prompt", &flags->prompt, "text to continue");
  const Option input =
      verb.option("--input", &flags->input, "JSON lines with \"prompt\" (and max_tokens, temperature, seed ...)");
  input.excludes(prompt);
  verb.option("--output", &flags->output, "write the JSON lines here instead of standard output").needs(input);
  verb.flag("--stats", &flags->shows_stats, "print rates to standard error at the end");
  add_generation_flags(verb, flags->generation);
  verb.on_run([flags] { run_generate(*flags); });
}

}  // namespace sinter::cli
