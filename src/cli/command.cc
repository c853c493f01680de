// The only file that includes CLI11, whose header takes some five seconds to compile.
#include "cli/command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "cli/help.h"
#include "cli/verbs.h"

namespace sinter::cli {
namespace {

std::vector<const CLI::App*> verbs_of(const CLI::App& command) {
  return command.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> names_of(const std::vector<const CLI::App*>& verbs) {
  std::vector<std::string> names;
  for (const CLI::App* verb : verbs) names.push_back(verb->get_name());
  return names;
}

// Whether a word of the command line is an option's name rather than a value: -o, --output, --output=x, but not -1.
bool is_option_word(std::string_view word) {
  return word.size() > 1 && word[0] == '-' &&
         (std::isalpha(static_cast<unsigned char>(word[1])) != 0 || word[1] == '-');
}

// "" for an option the verb has, else a message with the nearest it has.
std::string explain_option(const CLI::App& verb, const std::string& path, std::string word) {
  word = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    for (const std::string& name : option->get_snames()) {
      if (!word.starts_with("--") && word.starts_with("-" + name)) return "";  // -ovalue
    }
  }
  if (std::find(known.begin(), known.end(), word) != known.end()) return "";
  const std::string hint = base::did_you_mean(word, known);
  const bool takes_keys = verb.get_option_no_throw("overrides") != nullptr;
  return fmt::format(
      "there is no option '{}' of `{}`{}", word, path,
      hint.empty() && takes_keys ? "; keys of the recipe are written section.key=value, without dashes" : hint);
}

// CLI11's own words in ours: "Could not convert: --vocab-size = 12x", "--seconds: Value 0.01 not in range 0.100000 to
// 600.000000", "--x: hours not in {step,tokens}", "MODEL is required".
std::string plain_words(const std::string& text, const std::string& usage) {
  constexpr std::string_view kConvert = "Could not convert: ", kValue = ": Value ", kRange = " not in range ",
                             kMissing = " is required";
  if (text.starts_with(kConvert)) {
    const size_t equals = text.find(" = ");
    const std::string name = text.substr(kConvert.size(), equals - kConvert.size());
    return fmt::format("{}: '{}' is not a number", name, equals == std::string::npos ? "" : text.substr(equals + 3));
  }
  const size_t value = text.find(kValue), range = text.find(kRange), to = text.find(" to ", range);
  if (value < range && to != std::string::npos) {
    const size_t begin = value + kValue.size(), low = range + kRange.size();
    return fmt::format("{}: {} given; expected {:g} to {:g}", text.substr(0, value), text.substr(begin, range - begin),
                       std::strtod(text.c_str() + low, nullptr), std::strtod(text.c_str() + to + 4, nullptr));
  }
  const size_t colon = text.find(": "), set = text.find(" not in {");
  if (colon < set && set != std::string::npos && text.ends_with('}')) {
    const std::string given = text.substr(colon + 2, set - colon - 2);
    std::istringstream listed(text.substr(set + 9, text.size() - set - 10));
    std::vector<std::string> words;
    for (std::string word; std::getline(listed, word, ',');) words.push_back(word);
    const std::string nearest = base::nearest_name(given, words);
    return fmt::format("{}: '{}' given; expected one of {}{}", text.substr(0, colon), given, fmt::join(words, ", "),
                       nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
  }
  const size_t required = text.find(": 1 required ");
  if (required != std::string::npos && text.ends_with(" missing"))
    return fmt::format("{} is given without a value; `--help` says which it takes", text.substr(0, required));
  if (text.ends_with(kMissing))
    return fmt::format("{} is missing: {}", text.substr(0, text.size() - kMissing.size()), usage);
  return text;
}

// CLI11's name of a type, with the range it puts behind it: "INT:INT in [0 - 3]".
void describe_type(const CLI::Option& option, OptionHelp& out) {
  const std::string type = option.get_type_name();
  if (option.get_expected_max() == 0) return;  // a flag
  const std::string kind = type.substr(0, type.find(':'));
  out.value = kind == "INT" || kind == "UINT" ? "N" : kind == "FLOAT" ? "X" : "TEXT";
  if (option.get_expected_max() > 1 && !out.names.empty()) out.value += "...";
  const size_t open = type.find("in ["), dash = type.find(" - ", open), close = type.find(']', open);
  if (open == std::string::npos || dash == std::string::npos || close == std::string::npos) return;
  const std::string low = type.substr(open + 4, dash - open - 4), high = type.substr(dash + 3, close - dash - 3);
  const bool is_told = out.help.find(high) != std::string::npos;
  if (high.size() <= 7 && !is_told) out.range = low + " to " + high;
}

CommandHelp describe_app(const CLI::App& app, const std::string& path) {
  CommandHelp out{.path = path, .name = app.get_name(), .help = app.get_description(), .footer = app.get_footer()};
  for (const CLI::Option* option : app.get_options()) {
    OptionHelp o{.help = option->get_description(), .is_required = option->get_required()};
    if (option->get_positional()) {
      o.names = {option->get_name(true, false)};
    } else {
      for (const std::string& name : option->get_snames()) o.names.push_back("-" + name);
      for (const std::string& name : option->get_lnames()) o.names.push_back("--" + name);
    }
    o.default_value = option->get_default_str();
    describe_type(*option, o);
    (option->get_positional() ? out.arguments : out.options).push_back(std::move(o));
  }
  for (const CLI::App* verb : verbs_of(app)) out.verbs.push_back(describe_app(*verb, path + " " + verb->get_name()));
  return out;
}

// What other programs call a verb, and what to say to who types it.
std::string other_name(std::string_view word) {
  static const std::pair<std::string_view, std::string_view> kNames[] = {
      {"finetune", "`sinter tune`"},
      {"fine-tune", "`sinter tune`"},
      {"pretrain", "`sinter train`"},
      {"evaluate", "`sinter eval`"},
      {"benchmark", "`sinter bench`"},
      {"export", "`sinter convert`"},
      {"run", "`sinter chat` or `sinter generate`"},
      {"infer", "`sinter generate`"},
      {"complete", "`sinter generate`"},
      {"server", "`sinter serve`"},
      {"tokenize", "`sinter data tokenize`"},
      {"encode", "`sinter tokenizer encode`"},
      {"preprocess", "`sinter data run`"},
      {"init", "`sinter train --template small`"},
      {"search", "`sinter plan search`"},
      {"version", "`sinter --version`"},
      {"download", "`hf download ORGANISATION/NAME --local-dir FOLDER`"},
      {"pull", "`hf download ORGANISATION/NAME --local-dir FOLDER`"},
  };
  for (const auto& [name, ours] : kNames) {
    if (name == word) return fmt::format("; here it is {}", ours);
  }
  return "";
}

// What is wrong with the command line: a verb or option that is not there, with the nearest that is, before what CLI11
// missed or could not read.
std::string explain(const CLI::App& app, const CLI::ParseError& error, int argc, char** argv) {
  const CLI::App* level = &app;
  std::string path = "sinter";
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--") break;  // only values follow
    if (is_option_word(word)) {
      if (std::string problem = explain_option(*level, path, word); !problem.empty()) return problem;
    } else if (auto verbs = verbs_of(*level); !verbs.empty()) {
      const std::vector<std::string> names = names_of(verbs);
      const auto found = std::find(names.begin(), names.end(), word);
      const CLI::App* next = found == names.end() ? nullptr : verbs[static_cast<size_t>(found - names.begin())];
      const bool takes_words = !level->get_options([](const CLI::Option* o) { return o->get_positional(); }).empty();
      if (!next && !takes_words) {
        const std::string ours = level == &app ? other_name(word) : "";
        return fmt::format("there is no `{} {}`; known: {}{}", path, word, fmt::join(names, ", "),
                           ours.empty() ? base::did_you_mean(word, names) : ours);
      }
      if (next) level = next, path += " " + word;
    }
  }
  if (auto verbs = verbs_of(*level); level->get_require_subcommand_min() > 0 && !verbs.empty())
    return fmt::format("say what to do: `{} WORD` with one of {}", path, fmt::join(names_of(verbs), ", "));
  std::string usage = help_text(describe_app(*level, path));
  usage = usage.substr(std::min(usage.find("Usage: "), usage.size() - 7) + 7);
  return plain_words(error.what(), usage.substr(0, usage.find('\n')));
}

// A check of whole numbers, which the conversion to the target would wrap round or cut to its largest. What is no
// number at all it refuses itself.
template <class T>
std::string whole_number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_negative = std::is_unsigned_v<T> && text.starts_with('-');
  if (!is_negative && error != std::errc::result_out_of_range) return "";
  return fmt::format("{} given; expected a whole number from {} to {}", text, std::numeric_limits<T>::min(),
                     std::numeric_limits<T>::max());
}

// A check of finite numbers. What is no number at all, the conversion to the target refuses.
auto finite_number(bool (*holds)(double value, double bound), double bound, std::string expected) {
  return [=](const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    const bool is_number = end != text.c_str() && *end == '\0';
    if (!is_number || (std::isfinite(value) && holds(value, bound))) return std::string();
    return fmt::format("{} given; {}", text, expected);
  };
}

std::string path_of(const CLI::App& app) {
  return app.get_parent() ? path_of(*app.get_parent()) + " " + app.get_name() : "sinter";
}

class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const override {
    return help_text(describe_app(*app, path_of(*app)));
  }
};

}  // namespace

Option Option::required() const { return Option(option_->required()); }
Option Option::shows_default() const { return Option(option_->capture_default_str()); }
Option Option::needs(Option other) const { return Option(option_->needs(other.option_)); }
Option Option::excludes(Option other) const { return Option(option_->excludes(other.option_)); }

Option Option::in_range(int least, int most) const { return Option(option_->check(CLI::Range(least, most))); }
Option Option::in_range(double least, double most) const {
  option_->check(CLI::Range(least, most));  // which NaN passes
  return check(finite_number([](double, double) { return true; }, 0, "expected a finite number"));
}

Option Option::at_least(double least) const {
  return check(finite_number([](double value, double bound) { return value >= bound; }, least,
                             fmt::format("expected {:g} or more", least)));
}

Option Option::positive() const {
  return check(finite_number([](double value, double bound) { return value > bound; }, 0,
                             "expected a finite number more than 0"));
}

Option Option::one_of(const std::vector<std::string>& words) const {
  return Option(option_->check(CLI::IsMember(words)));
}

Option Option::existing_file() const { return Option(option_->check(CLI::ExistingFile)); }

Option Option::check(std::function<std::string(const std::string&)> problem) const {
  return Option(option_->check(std::move(problem)));
}

Option Option::delimiter(char between) const { return Option(option_->delimiter(between)); }
Option Option::one_value_each_time() const { return Option(option_->allow_extra_args(false)); }

Command Command::add_verb(const std::string& name, const std::string& help) const {
  return Command(app_->add_subcommand(name, help));
}

Option Command::option(const std::string& names, OptionTarget target, const std::string& help) const {
  CLI::Option* option = std::visit([&](auto* value) { return app_->add_option(names, *value, help); }, target);
  if (std::holds_alternative<int64_t*>(target)) option->check(whole_number<int64_t>);
  if (std::holds_alternative<uint64_t*>(target)) option->check(whole_number<uint64_t>);
  return Option(option);
}

Option Command::flag(const std::string& names, bool* target, const std::string& help) const {
  return Option(app_->add_flag(names, *target, help));
}

Command Command::requires_verb() const { return Command(app_->require_subcommand(1)); }
Command Command::footer(const std::string& text) const { return Command(app_->footer(text)); }
void Command::on_run(std::function<void()> action) const { app_->callback(std::move(action)); }

std::vector<std::string> Command::verb_names() const { return names_of(verbs_of(*app_)); }
bool Command::was_verb_named() const { return !app_->get_subcommands().empty(); }

CommandLine::CommandLine(const std::string& description, std::function<std::string()> version)
    : app_(std::make_unique<CLI::App>(description)) {
  app_->set_help_flag("-h,--help", "print this text and stop");
  app_->set_version_flag("--version", std::move(version), "print version, backends and libraries, and stop");
  app_->formatter(std::make_shared<HelpFormatter>());
}

CommandLine::~CommandLine() = default;

Command CommandLine::root() const { return Command(app_.get()); }
CommandHelp CommandLine::describe() const { return describe_app(*app_, "sinter"); }

void CommandLine::run(int argc, char** argv) const {
  if (argc == 1) {  // who types the name alone wants to know what there is
    std::fputs(help_text(describe()).c_str(), stderr);
    throw QuietExit{2};
  }
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) base::fail_usage("{}\nRun with --help for usage.", explain(*app_, e, argc, argv));
    app_->exit(e);  // prints help or the version
  }
}

}  // namespace sinter::cli
