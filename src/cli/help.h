// What the program understands, as plain data, and the texts made of it: help, a man page, completions, docs/cli.md.
#pragma once
#include <string>
#include <vector>

namespace sinter::cli {

struct OptionHelp {
  std::vector<std::string> names;  // "--output", "-o"; a positional argument has one without dashes
  std::string value;               // "TEXT", "N" (whole number), "X" (number); "" = a flag
  std::string default_value, help;
  std::string range;  // "0 to 3", or ""
  bool is_required = false;
};
struct CommandHelp {
  std::string path;  // "sinter plan search"
  std::string name, help, footer;
  std::vector<OptionHelp> arguments, options;
  std::vector<CommandHelp> verbs;
};

inline constexpr size_t kHelpWidth = 100;  // no line of help is longer

// Words of `text` in lines of at most `width`, each after `indent` spaces (the first line too). Lines that begin with a
// space and fit are kept as they are: examples.
std::string wrap_text(const std::string& text, size_t indent, size_t width);

std::string help_text(const CommandHelp& command);
// All commands, depth first, as one man page (troff) or one Markdown page.
std::string man_page(const CommandHelp& root);
std::string markdown_page(const CommandHelp& root);
// A page for each verb as (file name, Markdown), and README.md that lists them.
std::vector<std::pair<std::string, std::string>> verb_pages(const CommandHelp& root);
// For "bash", "zsh" or "fish". Throws base::UsageError on another shell.
std::string completion_script(const CommandHelp& root, const std::string& shell);

}  // namespace sinter::cli
