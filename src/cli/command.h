// Verbs and their options: what the program understands on its command line.
//
// Command and Option are handles into the CommandLine that made them: copied freely, valid as long as it lives. An
// option's target is written while the words are read, before the verb runs, so it has to live as long too: verbs keep
// theirs in the action they give to on_run().
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace sinter::cli {

struct CommandHelp;

// Each method adds a rule or a word of help and returns the option again. A value that breaks a rule ends the reading
// of the command line with UsageError; the target of an option that is not given stays as it is, unchecked.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option required() const;
  // Help has the value that the target holds now.
  Option shows_default() const;
  // Given only together with `other`; never together with it.
  Option needs(Option other) const;
  Option excludes(Option other) const;

  // Numbers, both ends among them.
  Option in_range(int least, int most) const;
  // Finite numbers.
  Option in_range(double least, double most) const;
  Option at_least(double least) const;
  Option positive() const;

  Option one_of(const std::vector<std::string>& words) const;
  Option existing_file() const;
  // `problem` says what is wrong with a value, "" for nothing.
  Option check(std::function<std::string(const std::string& value)> problem) const;

  // Lists: `--name a,b` is two values.
  Option delimiter(char between) const;
  // Lists: `--name a b` is one value and a word after it; --name is repeated for more.
  Option one_value_each_time() const;

 private:
  CLI::Option* option_;
};

// Where an option's value goes; its type is the one that help names and that a value must have.
using OptionTarget = std::variant<std::string*, int*, int64_t*, uint64_t*, float*, double*, std::vector<std::string>*,
                                  std::vector<double>*>;

class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}

  Command add_verb(const std::string& name, const std::string& help) const;
  // Names as "-o,--output"; a name without dashes is a positional argument.
  Option option(const std::string& names, OptionTarget target, const std::string& help) const;
  Option flag(const std::string& names, bool* target, const std::string& help) const;
  // One of the verbs below this command has to be named.
  Command requires_verb() const;
  // Help ends with `text`.
  Command footer(const std::string& text) const;
  // What the command does once the whole line is read, after the verb below it where one is named.
  void on_run(std::function<void()> action) const;

  // The verbs below this command.
  std::vector<std::string> verb_names() const;
  // Whether the line that was read names one of them.
  bool was_verb_named() const;

 private:
  CLI::App* app_;
};

class CommandLine {
 public:
  // `version` makes what --version prints.
  CommandLine(const std::string& description, std::function<std::string()> version);
  ~CommandLine();

  // The program itself, to which verbs are added.
  Command root() const;
  // All that was added so far.
  CommandHelp describe() const;
  // Reads the words and runs the verb they name; where they ask for help or the version, prints that instead.
  // Throws UsageError saying what is wrong with the words, a verb or option that is not there before anything else;
  // what the verb throws passes through.
  void run(int argc, char** argv) const;

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace sinter::cli
