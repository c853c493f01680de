// What lines from a terminal need beside their editing.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "cli/line_editor.h"

namespace sinter::cli {
namespace {

std::atomic<bool> interrupted{false};
struct sigaction before_interrupts {};
// The handler writes a byte, so that a wait for keys ends also where another thread got the signal, or where it came
// just before the wait.
std::array<int, 2> wake_pipe{-1, -1};

void on_interrupt(int) {
  if (interrupted.exchange(true)) ::_exit(130);
  const int before = errno;
  [[maybe_unused]] const ssize_t sent = ::write(wake_pipe[1], "!", 1);
  errno = before;
}

}  // namespace

InterruptFlag::InterruptFlag() {
  interrupted = false;
  if (wake_pipe[0] < 0 && ::pipe2(wake_pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) wake_pipe = {-1, -1};
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGINT, &action, &before_interrupts);
}
InterruptFlag::~InterruptFlag() { ::sigaction(SIGINT, &before_interrupts, nullptr); }
bool InterruptFlag::is_set() { return interrupted; }
bool InterruptFlag::take() {
  std::array<char, 64> bytes;
  while (::read(wake_pipe[0], bytes.data(), bytes.size()) > 0) {
  }
  return interrupted.exchange(false);
}

bool wait_for_key() {
  std::array<pollfd, 2> waits{pollfd{.fd = 0, .events = POLLIN, .revents = 0},
                              pollfd{.fd = wake_pipe[0], .events = POLLIN, .revents = 0}};
  while (!InterruptFlag::is_set()) {
    if (::poll(waits.data(), waits.size(), -1) < 0 && errno != EINTR) return true;  // reading says what is wrong
    if (waits[0].revents != 0) break;
  }
  return !InterruptFlag::is_set();
}

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
