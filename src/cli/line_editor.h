// Lines from the terminal, with editing keys and history (libedit, where it is there), or from a pipe.
#pragma once
#include <memory>
#include <optional>
#include <string>

namespace sinter::cli {

class LineEditor {
 public:
  // Editing where standard input and output are a terminal. History is read from and kept in `history_path` ("": none).
  explicit LineEditor(const std::string& history_path);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  bool is_terminal() const;
  struct Line {
    std::string text;
    bool was_interrupted = false;  // Ctrl-C while it was written: text is empty
  };
  // Without its newline; nullopt at the end of input.
  std::optional<Line> read(const std::string& prompt);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Ctrl-C while this lives sets a flag instead of ending the program; a second one before the flag is taken ends it.
class InterruptFlag {
 public:
  InterruptFlag();
  ~InterruptFlag();
  InterruptFlag(const InterruptFlag&) = delete;
  InterruptFlag& operator=(const InterruptFlag&) = delete;
  static bool is_set();
  static bool take();  // whether it was set; it is not any more
};

// Waits until standard input has something to read (true; also at its end) or an InterruptFlag is set (false).
bool wait_for_key();

// Keys that are pressed while this lives do not show up in what is printed; they wait for the next line.
class QuietKeys {
 public:
  QuietKeys();
  ~QuietKeys();
  QuietKeys(const QuietKeys&) = delete;
  QuietKeys& operator=(const QuietKeys&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Where a user's history of `name` is kept: $XDG_STATE_HOME/sinter, ~/.local/state/sinter; "" without a home.
std::string history_path(const std::string& name);

}  // namespace sinter::cli
