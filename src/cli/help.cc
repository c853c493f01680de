#include "cli/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

namespace sinter::cli {
namespace {

constexpr size_t kColumn = 28;  // where the words of an option begin

std::string names_of(const OptionHelp& o) {
  std::vector<std::string> names = o.names;
  std::stable_sort(names.begin(), names.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  std::string text = fmt::format("{}", fmt::join(names, ", "));
  if (!o.value.empty() && o.names[0].starts_with('-')) text += " " + o.value;
  return text;
}

std::string words_of(const OptionHelp& o) {
  std::string text = o.help;
  if (!o.range.empty()) text += fmt::format(" ({})", o.range);
  if (!o.default_value.empty()) text += fmt::format(" [default: {}]", o.default_value);
  if (o.is_required && o.names[0].starts_with('-')) text += " (required)";
  return text;
}

// "  left           words" with the words wrapped in their column.
std::string entry(const std::string& left, const std::string& words) {
  std::string text = "  " + left;
  const std::string wrapped = wrap_text(words, kColumn, kHelpWidth);
  if (text.size() + 2 > kColumn) return text + "\n" + wrapped;
  return text + wrapped.substr(std::min(text.size(), wrapped.size()));
}

std::string usage(const CommandHelp& c) {
  std::string text = c.path;
  if (!c.options.empty()) text += " [OPTIONS]";
  for (const OptionHelp& o : c.arguments) {
    const bool is_list = o.value.ends_with("...");
    std::string word = o.names[0] + (is_list ? "..." : "");
    text += o.is_required ? " " + word : " [" + word + "]";
  }
  if (!c.verbs.empty()) text += c.arguments.empty() ? " VERB" : " | VERB";
  return text;
}

std::string escaped(std::string text, const std::string& special, char with) {
  std::string out;
  for (char c : text) {
    if (special.find(c) != std::string::npos) out += with;
    out += c;
  }
  return out;
}

void append_man(const CommandHelp& c, std::string& out) {
  auto troff = [](const std::string& text) {
    std::string t = escaped(text, "\\", '\\');
    size_t at = 0;
    while ((at = t.find('-', at)) != std::string::npos) t.insert(at, "\\"), at += 2;
    return t.starts_with('.') || t.starts_with('\'') ? "\\&" + t : t;
  };
  out += fmt::format(".SS {}\n{}\n.PP\n\\fB{}\\fR\n", troff(c.path), troff(c.help), troff(usage(c)));
  for (const auto* list : {&c.arguments, &c.options}) {
    for (const OptionHelp& o : *list)
      out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", troff(names_of(o)), troff(words_of(o)));
  }
  if (!c.footer.empty()) {
    out += ".PP\n.nf\n";
    std::istringstream lines(c.footer);
    for (std::string line; std::getline(lines, line);) out += troff(line) + "\n";
    out += ".fi\n";
  }
  for (const CommandHelp& verb : c.verbs) append_man(verb, out);
}

void append_markdown(const CommandHelp& c, std::string& out) {
  out += fmt::format("\n## {}\n\n```\n{}```\n", c.path, help_text(c));
  for (const CommandHelp& verb : c.verbs) append_markdown(verb, out);
}

std::vector<std::string> words_after(const CommandHelp& c) {
  std::vector<std::string> words;
  for (const CommandHelp& verb : c.verbs) words.push_back(verb.name);
  for (const OptionHelp& o : c.options) {
    for (const std::string& name : o.names) words.push_back(name);
  }
  return words;
}

void append_cases(const CommandHelp& c, std::string& out) {
  out += fmt::format("    '{}') words='{}' ;;\n", c.path, fmt::join(words_after(c), " "));
  for (const CommandHelp& verb : c.verbs) append_cases(verb, out);
}

// The words typed so far that are verbs make the path; its words and file names complete the last.
std::string bash_script(const CommandHelp& root) {
  std::string cases;
  append_cases(root, cases);
  std::vector<std::string> paths;
  auto add = [&](auto&& self, const CommandHelp& c) -> void {
    paths.push_back(c.path);
    for (const CommandHelp& verb : c.verbs) self(self, verb);
  };
  add(add, root);
  return fmt::format(R"(# bash completion for sinter: source this file, or put it into bash-completion's folder.
_sinter() {{
  local path=sinter word words='' i
  local -r paths=$'{}\n'
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="$path ${{COMP_WORDS[i]}}"
    case "$paths" in *"$word"$'\n'*) path=$word ;; esac
  done
  case "$path" in
{}  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
  [[ ${{COMP_WORDS[COMP_CWORD]}} == -* ]] || COMPREPLY+=($(compgen -f -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o filenames -F _sinter sinter
)",
                     fmt::join(paths, "\\n"), cases);
}

void append_fish(const CommandHelp& c, std::string& out) {
  std::istringstream words(c.path);
  std::string word, condition;
  std::vector<std::string> verbs;
  words >> word;
  while (words >> word) verbs.push_back(word);
  for (const std::string& verb : verbs)
    condition += fmt::format("{}__fish_seen_subcommand_from {}", condition.empty() ? "" : "; and ", verb);
  if (condition.empty()) condition = "__fish_use_subcommand";
  auto quoted = [](const std::string& text) { return "'" + escaped(text, "'\\", '\\') + "'"; };
  for (const CommandHelp& verb : c.verbs)
    out += fmt::format("complete -c sinter -n {} -a {} -d {}\n", quoted(condition), verb.name, quoted(verb.help));
  for (const OptionHelp& o : c.options) {
    std::string names;
    for (const std::string& name : o.names)
      names += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    out += fmt::format("complete -c sinter -n {}{}{} -d {}\n", quoted(condition), names, o.value.empty() ? "" : " -r",
                       quoted(o.help));
  }
  for (const CommandHelp& verb : c.verbs) append_fish(verb, out);
}

}  // namespace

std::string wrap_text(const std::string& text, size_t indent, size_t width) {
  std::string out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string margin(indent, ' ');
    const bool fits = indent + line.size() <= width;
    if (line.empty() || (line.starts_with(' ') && fits)) {
      out += (line.empty() ? "" : margin + line) + "\n";
      continue;
    }
    const size_t inner = line.find_first_not_of(' ');
    if (inner > 0) {  // an indented line that is too long: its words wrap a little further in
      const std::string wrapped = wrap_text(line.substr(inner), indent + inner + 2, width);
      out += wrapped.substr(2);
      continue;
    }
    std::string current = margin, word;
    std::istringstream words(line);
    while (words >> word) {
      const bool is_first = current.size() == indent;
      if (!is_first && current.size() + 1 + word.size() > width) {
        out += current + "\n";
        current = margin + word;
      } else {
        current += (is_first ? "" : " ") + word;
      }
    }
    out += current + "\n";
  }
  return out;
}

std::string help_text(const CommandHelp& c) {
  std::string text = wrap_text(c.help, 0, kHelpWidth) + "\n" + wrap_text("Usage: " + usage(c), 0, kHelpWidth);
  if (!c.arguments.empty()) text += "\nArguments:\n";
  for (const OptionHelp& o : c.arguments) text += entry(names_of(o), words_of(o));
  if (!c.options.empty()) text += "\nOptions:\n";
  for (const OptionHelp& o : c.options) text += entry(names_of(o), words_of(o));
  if (!c.verbs.empty()) text += "\nVerbs:\n";
  for (const CommandHelp& verb : c.verbs) text += entry(verb.name, verb.help);
  if (!c.footer.empty()) text += "\n" + wrap_text(c.footer, 0, kHelpWidth);
  return text;
}

std::string man_page(const CommandHelp& root) {
  std::string text = ".TH SINTER 1\n.SH NAME\nsinter \\- " + root.help +
                     "\n.SH SYNOPSIS\n\\fBsinter\\fR VERB [OPTIONS] ...\n.SH VERBS\n";
  for (const CommandHelp& verb : root.verbs) append_man(verb, text);
  text += ".SH EXIT STATUS\n0: done; 1: failed; 2: a wrong command line.\n";
  return text;
}

std::string markdown_page(const CommandHelp& root) {
  std::string text =
      "# The command line\n\nEvery verb as `--help` prints it. Exit status: 0 done, 1 failed, 2 a wrong command "
      "line.\n";
  append_markdown(root, text);
  return text;
}

std::vector<std::pair<std::string, std::string>> verb_pages(const CommandHelp& root) {
  std::vector<std::pair<std::string, std::string>> pages;
  std::string list =
      "# Every verb\n\nMade from `--help` by `make docs`; do not edit. Exit status: 0 done, 1 failed, 2 a wrong "
      "command line.\n\n"
      "| verb | |\n|---|---|\n";
  for (const CommandHelp& verb : root.verbs) {
    const std::string name = verb.name + ".md";
    list += fmt::format("| [`{}`]({}) | {} |\n", verb.path, name, verb.help);
    std::string page = fmt::format("# {}\n\nMade from `--help` by `make docs`; do not edit.\n", verb.path);
    append_markdown(verb, page);
    pages.emplace_back(name, std::move(page));
  }
  pages.emplace_back("README.md", std::move(list));
  return pages;
}

std::string completion_script(const CommandHelp& root, const std::string& shell) {
  if (shell == "bash") return bash_script(root);
  if (shell == "zsh") return "autoload -U +X bashcompinit && bashcompinit\n" + bash_script(root);
  std::string text = "# fish completion for sinter: put this file into ~/.config/fish/completions.\n";
  append_fish(root, text);
  return text;
}

}  // namespace sinter::cli
