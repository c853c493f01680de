// What lines from a terminal need beside their editing.
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "cli/line_editor.h"

namespace sinter::cli {
namespace {

std::atomic<bool> interrupted{false};
struct sigaction before_interrupts {};

void on_interrupt(int) {
  if (interrupted.exchange(true)) ::_exit(130);
}

}  // namespace

InterruptFlag::InterruptFlag() {
  interrupted = false;
  struct sigaction action {};
  action.sa_handler = on_interrupt;  // without SA_RESTART: reading a line ends
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &before_interrupts);
}
InterruptFlag::~InterruptFlag() { ::sigaction(SIGINT, &before_interrupts, nullptr); }
bool InterruptFlag::is_set() { return interrupted; }
bool InterruptFlag::take() { return interrupted.exchange(false); }

struct QuietKeys::State {
  termios before{};
  bool is_changed = false;
};

QuietKeys::QuietKeys() : state_(std::make_unique<State>()) {
  if (!::isatty(0) || ::tcgetattr(0, &state_->before) != 0) return;
  termios quiet = state_->before;
  quiet.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON);  // Ctrl-C stays a signal
  state_->is_changed = ::tcsetattr(0, TCSANOW, &quiet) == 0;
}
QuietKeys::~QuietKeys() {
  if (state_->is_changed) ::tcsetattr(0, TCSANOW, &state_->before);
}

std::string history_path(const std::string& name) {
  namespace fs = std::filesystem;
  fs::path folder;
  if (const char* state = std::getenv("XDG_STATE_HOME"); state && *state) {
    folder = state;
  } else if (const char* home = std::getenv("HOME"); home && *home) {
    folder = fs::path(home) / ".local" / "state";
  } else {
    return "";
  }
  std::error_code error;
  fs::create_directories(folder / "sinter", error);
  return error ? "" : (folder / "sinter" / name).string();
}

}  // namespace sinter::cli
