#include <histedit.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <cwchar>
#include <iostream>

#include "cli/line_editor.h"

namespace sinter::cli {

struct LineEditor::State {
  bool is_terminal = ::isatty(0) && ::isatty(1);
  EditLine* editor = nullptr;
  History* history = nullptr;
  HistEvent event{};
  std::string path, prompt;

  static char* prompt_of(EditLine* editor) {
    State* state = nullptr;
    ::el_get(editor, EL_CLIENTDATA, &state);
    return state->prompt.data();
  }

  // One character, or none where Ctrl-C comes or the input ends: el_gets returns then.
  static int next_key(EditLine*, wchar_t* key) {
    std::mbstate_t part{};
    while (wait_for_key()) {
      char byte = 0;
      if (::read(0, &byte, 1) != 1) return 0;
      const size_t used = std::mbrtowc(key, &byte, 1, &part);
      if (used == 0 || used == 1) return 1;
      if (used == static_cast<size_t>(-1)) part = {};  // not a character: left out
    }
    return -1;
  }
};

LineEditor::LineEditor(const std::string& history_path) : state_(std::make_unique<State>()) {
  State& s = *state_;
  if (!s.is_terminal) return;
  // Characters of more than one byte: by the user's locale, or as UTF-8 where it knows none.
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(std::setlocale(LC_CTYPE, nullptr), "C") == 0) std::setlocale(LC_CTYPE, "C.UTF-8");
  s.editor = ::el_init("sinter", stdin, stdout, stderr);
  if (!s.editor) return;
  s.path = history_path;
  s.history = ::history_init();
  ::history(s.history, &s.event, H_SETSIZE, 1000);
  ::history(s.history, &s.event, H_SETUNIQUE, 1);
  if (!s.path.empty()) ::history(s.history, &s.event, H_LOAD, s.path.c_str());
  ::el_set(s.editor, EL_CLIENTDATA, state_.get());
  ::el_set(s.editor, EL_PROMPT, &State::prompt_of);
  ::el_set(s.editor, EL_EDITOR, "emacs");
  ::el_set(s.editor, EL_HIST, ::history, s.history);
  ::el_set(s.editor, EL_SIGNAL, 0);
  ::el_set(s.editor, EL_GETCFN, &State::next_key);
  ::el_set(s.editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
  ::el_source(s.editor, nullptr);  // the user's ~/.editrc
}

LineEditor::~LineEditor() {
  State& s = *state_;
  if (s.editor) ::el_end(s.editor);
  if (s.history) ::history_end(s.history);
}

bool LineEditor::is_terminal() const { return state_->is_terminal; }

std::optional<LineEditor::Line> LineEditor::read(const std::string& prompt) {
  State& s = *state_;
  Line line;
  if (!s.editor) {
    if (s.is_terminal) std::printf("%s", prompt.c_str()), std::fflush(stdout);
    if (!std::getline(std::cin, line.text)) return std::nullopt;
    return line;
  }
  s.prompt = prompt;
  int length = 0;
  const char* text = ::el_gets(s.editor, &length);
  if (!text || length <= 0) {
    if (!InterruptFlag::take()) return std::nullopt;
    ::el_reset(s.editor);
    std::printf("\n");
    return Line{.text = "", .was_interrupted = true};
  }
  line.text.assign(text, static_cast<size_t>(length));
  while (!line.text.empty() && (line.text.back() == '\n' || line.text.back() == '\r')) line.text.pop_back();
  if (line.text.find_first_not_of(" \t") == std::string::npos) return line;
  ::history(s.history, &s.event, H_ENTER, line.text.c_str());
  if (!s.path.empty()) {
    const mode_t before = ::umask(077);  // what one says is one's own
    ::history(s.history, &s.event, H_SAVE, s.path.c_str());
    ::umask(before);
  }
  return line;
}

}  // namespace sinter::cli
