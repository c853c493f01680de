#include "cli/data/preview.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/command.h"
#include "tune/data/dataset.h"
#include "tune/data/pack.h"

namespace sinter::cli {
namespace {

struct Flags {
  const std::vector<std::string>* inputs = nullptr;
  const int64_t* rows = nullptr;
  std::string model, format = "automatic", task = "sft", train_on = "assistant", chat_template, color = "auto";
  std::vector<std::string> fields;
  int64_t row_tokens = 2048, max_rows = 0;
  bool as_json = false, shows_ids = false, markers_are_special = false;
};

const char* color_of(tune::Role role) {
  switch (role) {
    case tune::Role::system:
      return "35";
    case tune::Role::user:
    case tune::Role::prompt:
      return "34";
    case tune::Role::assistant:
    case tune::Role::completion:
      return "32";
    case tune::Role::tool:
      return "33";
    case tune::Role::markup:
      break;
  }
  return "90";
}

// Tokens in the colour of their role; supervised ones underlined, or between ⟦ and ⟧ without colours.
class TokenPrinter {
 public:
  TokenPrinter(const tokenizer::Tokenizer& tokenizer, bool has_color, bool shows_ids)
      : tokenizer_(tokenizer), has_color_(has_color), shows_ids_(shows_ids) {}

  void print(const tune::TokenSegments& tokens) const {
    std::string out;
    for (size_t begin = 0; begin < tokens.ids.size();) {
      const bool is_supervised = tokens.weights[begin] != 0;
      size_t end = begin;
      while (end < tokens.ids.size() && (tokens.weights[end] != 0) == is_supervised &&
             (!has_color_ || tokens.roles[end] == tokens.roles[begin]))
        ++end;
      const std::string text = text_of(std::span(tokens.ids).subspan(begin, end - begin));
      if (has_color_) {
        out += fmt::format("\x1b[{}{}m{}\x1b[0m", color_of(tokens.roles[begin]), is_supervised ? ";4" : "", text);
      } else {
        out += is_supervised ? "⟦" + text + "⟧" : text;
      }
      begin = end;
    }
    std::printf("%s\n", out.c_str());
  }

 private:
  std::string text_of(std::span<const int32_t> ids) const {
    if (!shows_ids_) return printable(tokenizer_.decode(ids));
    std::string out;
    for (int32_t id : ids) out += fmt::format("{}:{}|", id, printable(tokenizer_.token_bytes(id)));
    return out;
  }
  // What could move a terminal's cursor stands as a name.
  static std::string printable(const std::string& text) {
    std::string out;
    for (char c : text) {
      if (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      } else {
        out += c;
      }
    }
    return out;
  }

  const tokenizer::Tokenizer& tokenizer_;
  bool has_color_, shows_ids_;
};

tune::TrainOn parse_train_on(const std::string& text) {
  if (text == "last") return tune::TrainOn::last;
  return text == "all" ? tune::TrainOn::all : tune::TrainOn::assistant;
}

tune::DatasetOptions dataset_options(const Flags& flags) {
  tune::DatasetOptions options;
  for (const std::string& input : *flags.inputs) {
    tune::DataSource source;
    source.records = {.path = input, .format = tune::parse_format(flags.format), .max_rows = flags.max_rows};
    for (const std::string& field : flags.fields) {
      const size_t at = field.find('=');
      if (at == std::string::npos)
        base::fail_usage("--field '{}' should be NAME=COLUMN, such as prompt=question", field);
      source.records.fields[field.substr(0, at)] = field.substr(at + 1);
    }
    options.sources.push_back(std::move(source));
  }
  options.max_tokens = flags.row_tokens;
  return options;
}

// The sequences of one row and what they are, for every kind of row.
using Sequences = std::vector<std::pair<std::string, tune::TokenSegments>>;
Sequences sequences_of(const tune::Sample& s) { return {{"", s.tokens}}; }
Sequences sequences_of(const tune::PreferencePair& p) { return {{"chosen", p.chosen}, {"rejected", p.rejected}}; }
Sequences sequences_of(const tune::LabelledSample& s) { return {{s.is_desirable ? "wanted" : "unwanted", s.tokens}}; }
Sequences sequences_of(const tune::Prompt& p) {
  tune::TokenSegments tokens;
  tokens.append(p.ids, tune::Role::prompt, 0);
  return {{"prompt", tokens}};
}

nlohmann::json json_of(const tune::TokenSegments& tokens) {
  nlohmann::json roles = nlohmann::json::array();
  for (tune::Role role : tokens.roles) roles.push_back(tune::role_name(role));
  return {{"ids", tokens.ids}, {"roles", roles}, {"weights", tokens.weights}};
}

template <class Item>
void show(const Flags& flags, const tokenizer::Tokenizer& tokenizer, const tune::Dataset<Item>& dataset) {
  const tune::DatasetReport& report = dataset.report;
  std::vector<int64_t> lengths;
  for (const Item& item : dataset.items) {
    for (const auto& [name, tokens] : sequences_of(item)) lengths.push_back(tokens.num_tokens());
  }
  const auto rows = tune::pack_rows(lengths, flags.row_tokens, tune::PackStrategy::best_fit);
  const double filled = static_cast<double>(report.tokens) /
                        static_cast<double>(std::max<int64_t>(1, flags.row_tokens * static_cast<int64_t>(rows.size())));
  const auto shown = std::min(static_cast<size_t>(*flags.rows), dataset.items.size());
  if (flags.as_json) {
    nlohmann::json out{{"rows", report.rows},
                       {"bad", report.bad},
                       {"too_long", report.too_long},
                       {"tokens", report.tokens},
                       {"supervised", report.supervised},
                       {"longest", report.longest},
                       {"packed_rows", rows.size()},
                       {"filled", filled},
                       {"problems", report.problems},
                       {"samples", nlohmann::json::array()}};
    for (size_t i = 0; i < shown; ++i) {
      for (const auto& [name, tokens] : sequences_of(dataset.items[i])) {
        nlohmann::json one = json_of(tokens);
        one["origin"] = dataset.items[i].origin;
        if (!name.empty()) one["what"] = name;
        out["samples"].push_back(std::move(one));
      }
    }
    std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return;
  }
  const bool has_color = flags.color == "always" || (flags.color == "auto" && ::isatty(1) == 1);
  const TokenPrinter printer(tokenizer, has_color, flags.shows_ids);
  for (size_t i = 0; i < shown; ++i) {
    for (const auto& [name, tokens] : sequences_of(dataset.items[i])) {
      std::printf("── %s%s%s: %s tokens, %s supervised\n", dataset.items[i].origin.c_str(), name.empty() ? "" : ", ",
                  name.c_str(), base::format_grouped(tokens.num_tokens()).c_str(),
                  base::format_grouped(tokens.num_supervised()).c_str());
      printer.print(tokens);
    }
  }
  std::printf("\n%s\n", report.summary(flags.row_tokens).c_str());
  for (const std::string& problem : report.problems) std::printf("  left out: %s\n", problem.c_str());
  std::printf("packed into %s rows of %s tokens, %.1f %% filled; the longest sequence has %s\n",
              base::format_grouped(static_cast<int64_t>(rows.size())).c_str(),
              base::format_grouped(flags.row_tokens).c_str(), 100 * filled,
              base::format_grouped(report.longest).c_str());
  if (has_color)
    std::printf(
        "\x1b[4munderlined\x1b[0m tokens are learned; \x1b[35msystem\x1b[0m \x1b[34muser\x1b[0m \x1b[32massistant"
        "\x1b[0m \x1b[33mtool\x1b[0m \x1b[90mtemplate\x1b[0m\n");
  else if (report.supervised > 0)
    std::printf("what stands between ⟦ and ⟧ is learned\n");
}

void run_preview(const Flags& flags) {
  const tokenizer::Tokenizer tokenizer = tokenizer::Tokenizer::load(flags.model);
  std::unique_ptr<tokenizer::ChatTemplate> chat;
  if (!flags.chat_template.empty()) {
    std::map<std::string, std::string> special;
    if (tokenizer::ChatTemplate::exists(flags.model))
      special = tokenizer::ChatTemplate::load(flags.model).special_tokens();
    chat =
        std::make_unique<tokenizer::ChatTemplate>(base::read_file(flags.chat_template), flags.chat_template, special);
  } else if (tokenizer::ChatTemplate::exists(flags.model)) {
    chat = std::make_unique<tokenizer::ChatTemplate>(tokenizer::ChatTemplate::load(flags.model));
  }
  const tune::Renderer renderer(
      tokenizer, chat.get(),
      {.train_on = parse_train_on(flags.train_on), .markers_are_text = !flags.markers_are_special});
  const tune::DatasetOptions options = dataset_options(flags);
  if (flags.task == "sft") return show(flags, tokenizer, tune::load_samples(options, renderer));
  if (flags.task == "kto") return show(flags, tokenizer, tune::load_labelled(options, renderer));
  if (flags.task == "prompts") return show(flags, tokenizer, tune::load_prompts(options, renderer));
  show(flags, tokenizer, tune::load_pairs(options, renderer));
}

}  // namespace

std::function<bool()> add_tuning_preview(const Command& verb, const std::vector<std::string>* inputs,
                                         const int64_t* rows) {
  auto flags = std::make_shared<Flags>();
  flags->inputs = inputs;
  flags->rows = rows;
  const Option model = verb.option("-m,--model", &flags->model,
                                   "a folder with tokenizer.json and the chat template: show rows for tuning (.jsonl, "
                                   ".json, .parquet) as the tokens this model sees, and what it learns");
  verb.option("--task", &flags->task, "sft, pairs (dpo, reward), kto or prompts (grpo)")
      .one_of({"sft", "pairs", "kto", "prompts"})
      .shows_default()
      .needs(model);
  verb.option("--format", &flags->format, "automatic, messages, sharegpt, alpaca, question, prompt_completion, ...")
      .shows_default()
      .needs(model);
  verb.option("--field", &flags->fields, "NAME=COLUMN: a field that is called otherwise, such as prompt=problem")
      .one_value_each_time()
      .needs(model);
  verb.option("--train-on", &flags->train_on, "assistant (turns), last (turn) or all (tokens)")
      .one_of({"assistant", "last", "all"})
      .shows_default()
      .needs(model);
  verb.option("--chat-template", &flags->chat_template, "a .jinja file instead of the model's template").needs(model);
  verb.flag("--special-markers", &flags->markers_are_special, "read special tokens written inside messages")
      .needs(model);
  verb.option("--max-rows", &flags->max_rows, "rows to read of each file; 0 = all")
      .shows_default()
      .at_least(0)
      .needs(model);
  verb.option("--row-tokens", &flags->row_tokens, "tokens of a packed row; longer rows are left out")
      .shows_default()
      .at_least(1)
      .needs(model);
  verb.flag("--ids", &flags->shows_ids, "print every token with its id").needs(model);
  verb.option("--color", &flags->color, "auto, always or never")
      .one_of({"auto", "always", "never"})
      .shows_default()
      .needs(model);
  verb.flag("--json", &flags->as_json, "print ids, roles, weights and counts as JSON").needs(model);
  return [flags] {
    if (flags->model.empty()) return false;
    run_preview(*flags);
    return true;
  };
}

}  // namespace sinter::cli
