#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/generation_flags.h"
#include "cli/verbs.h"
#include "engine/generator.h"
#include "eval/model.h"
#include "tokenizer/tokenizer.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::string model, prompt, input, output;
  GenerationFlags generation;
  bool shows_stats = false;
};

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
  std::fputs(flags.prompt.c_str(), stdout);
  generator.run({request}, [&](size_t, int32_t token) {
    std::fputs(decoder.push(token).c_str(), stdout);
    std::fflush(stdout);
    return true;
  });
  std::printf("%s\n", decoder.finish().c_str());
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
  // Keys of the caller's own pass through; one that nearly is ours is a slip.
  for (const auto& [key, value] : line.items()) {
    if (std::find(kNames.begin(), kNames.end(), key) != kNames.end()) continue;
    const std::string hint = base::did_you_mean(key, kNames);
    SINTER_CHECK(hint.empty(), "{}: there is no key \"{}\"{}", origin, key, hint);
  }
  take_number(line, "max_tokens", origin, flags.max_tokens);
  take_number(line, "temperature", origin, flags.sampling.temperature);
  take_number(line, "top_k", origin, flags.sampling.top_k);
  take_number(line, "top_p", origin, flags.sampling.top_p);
  take_number(line, "min_p", origin, flags.sampling.min_p);
  take_number(line, "seed", origin, flags.sampling.seed);
  return flags;
}

// Lines {"prompt": "...", "max_tokens": n, "temperature": t, "seed": s, ...} -> lines with "text" added.
void generate_file(const Flags& flags, const eval::OpenModel& model, const tokenizer::Tokenizer& tokenizer) {
  std::ifstream file;
  if (flags.input != "-") {
    file.open(flags.input);
    SINTER_CHECK(file.good(), "cannot open '{}'", flags.input);
  }
  std::istream& in = flags.input == "-" ? std::cin : file;
  std::vector<nlohmann::json> lines;
  std::vector<engine::Request> requests;
  std::string text;
  for (int64_t number = 1; std::getline(in, text); ++number) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::string origin = fmt::format("{}:{}", flags.input, number);
    nlohmann::json line = base::parse_json(text, origin);
    SINTER_CHECK(line.is_object() && line.contains("prompt") && line["prompt"].is_string(),
                 "{}: expected an object with a string \"prompt\"", origin);
    GenerationFlags own = flags.generation;
    // Each line draws its own numbers, so that equal prompts differ unless seeds are given.
    own.sampling.seed += static_cast<uint64_t>(number - 1);
    own = read_line_flags(line, origin, own);
    requests.push_back(make_request(own, encode_prompt(tokenizer, line["prompt"], model.spec), model.spec, tokenizer));
    lines.push_back(std::move(line));
  }
  SINTER_CHECK(!requests.empty(), "'{}' has no requests", flags.input);
  engine::Generator generator(*model.transformer, {});
  base::ProgressLine progress;
  int64_t made = 0;
  std::vector<engine::Result> results = generator.run(requests, [&](size_t, int32_t) {
    progress.update(fmt::format("{} requests, {} tokens generated so far", requests.size(), ++made));
    return true;
  });
  progress.finish();
  std::ofstream out_file;
  if (!flags.output.empty()) {
    out_file.open(flags.output);
    SINTER_CHECK(out_file.good(), "cannot create '{}'", flags.output);
  }
  std::ostream& out = flags.output.empty() ? std::cout : out_file;
  for (size_t i = 0; i < results.size(); ++i) {
    lines[i]["text"] = continuation_text(tokenizer, requests[i].prompt, results[i].tokens);
    lines[i]["tokens"] = results[i].tokens.size();
    lines[i]["finish_reason"] = results[i].reason == engine::FinishReason::stop ? "stop" : "length";
    out << lines[i].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
  }
  out.flush();
  SINTER_CHECK(out.good(), "cannot write '{}'", flags.output.empty() ? "standard output" : flags.output);
  if (flags.shows_stats) print_generation_stats(generator.stats());
}

void run_generate(const Flags& flags) {
  engine::check_sampling(flags.generation.sampling);
  auto tokenizer = load_tokenizer(flags.generation, flags.model);
  eval::OpenModel model = open_for_generation(flags.generation, flags.model);
  if (flags.input.empty()) {
    generate_one(flags, model, tokenizer);
  } else {
    generate_file(flags, model, tokenizer);
  }
}

}  // namespace

void add_generate(CLI::App& app) {
  auto flags = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("generate", "continue a prompt, or many from a file at once");
  verb->add_option("MODEL", flags->model, "model folder")->required();
  auto* prompt = verb->add_option("--prompt", flags->prompt, "text to continue");
  auto* input =
      verb->add_option("--input", flags->input, "JSON lines with \"prompt\" (and max_tokens, temperature, seed ...)");
  input->excludes(prompt);
  verb->add_option("--output", flags->output, "write the JSON lines here instead of standard output")->needs(input);
  verb->add_flag("--stats", flags->shows_stats, "print rates to standard error at the end");
  add_generation_flags(*verb, flags->generation);
  verb->callback([flags] { run_generate(*flags); });
}

}  // namespace sinter::cli
