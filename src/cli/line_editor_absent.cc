// Without libedit: the terminal's own line editing, no history.
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "cli/line_editor.h"

namespace sinter::cli {

struct LineEditor::State {
  bool is_terminal = ::isatty(0) && ::isatty(1);
};

LineEditor::LineEditor(const std::string&) : state_(std::make_unique<State>()) {}
LineEditor::~LineEditor() = default;
bool LineEditor::is_terminal() const { return state_->is_terminal; }

std::optional<LineEditor::Line> LineEditor::read(const std::string& prompt) {
  if (state_->is_terminal) {
    std::fputs(prompt.c_str(), stdout);
    std::fflush(stdout);
  }
  Line line;
  if (state_->is_terminal && !wait_for_key()) {
    InterruptFlag::take();
    std::printf("\n");
    return Line{.text = "", .was_interrupted = true};
  }
  if (std::getline(std::cin, line.text)) return line;
  return std::nullopt;
}

}  // namespace sinter::cli
