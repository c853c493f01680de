#include "train/stop_request.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>

#include "base/error.h"

namespace sinter::train {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1, SIGHUP};
volatile std::sig_atomic_t caught = 0;
std::array<struct sigaction, kSignals.size()> previous;

volatile std::sig_atomic_t speaks_now = 0;
std::atomic<int64_t> unsaved{0};

// In a signal handler: no allocation, no formatting library.
void answer(int number) {
  char text[256];
  size_t size = 0;
  auto put = [&](const char* words) {
    while (*words != 0 && size < sizeof text) text[size++] = *words++;
  };
  auto put_number = [&](int64_t value) {
    char digits[20];
    int count = 0;
    do {
      digits[count++] = static_cast<char>('0' + value % 10);
      value /= 10;
    } while (value > 0);
    while (count > 0 && size < sizeof text) text[size++] = digits[--count];
  };
  const int64_t steps = unsaved.load();
  put("\nstopping after this step, then a checkpoint");
  if (number == SIGINT) {
    put("; Ctrl-C again stops now and loses ");
    if (steps > 0) {
      put("the ");
      put_number(steps);
      put(steps == 1 ? " step since the last checkpoint and " : " steps since the last checkpoint and ");
    }
    put("the step under way");
  }
  put("\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, size);
}

void on_signal(int number) {
  const int error = errno;
  if (number == SIGINT && caught == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  if (caught == 0 && speaks_now != 0) answer(number);
  caught = number;
  errno = error;
}

}  // namespace

double StopRequest::clock_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void StopRequest::set_unsaved(int64_t steps) { unsaved.store(steps); }

StopRequest::StopRequest(const spec::CheckpointRecipe& recipe, double began, bool speaks) {
  if (recipe.time_limit > 0) {
    deadline_ = began + recipe.time_limit - recipe.time_margin;
  } else if (const char* text = std::getenv("SLURM_JOB_END_TIME"); text && *text) {
    char* end = nullptr;
    deadline_ = std::strtod(text, &end) - recipe.time_margin;
    SINTER_CHECK(*end == 0, "SLURM_JOB_END_TIME is '{}'; expected seconds since the epoch", text);
  }
  caught = 0;
  unsaved.store(0);
  speaks_now = speaks ? 1 : 0;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = on_signal;
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESTART;
    ::sigaction(kSignals[i], nullptr, &previous[i]);
    if (kSignals[i] == SIGHUP && previous[i].sa_handler == SIG_IGN) continue;
    ::sigaction(kSignals[i], &action, nullptr);
  }
}

StopRequest::~StopRequest() {
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &previous[i], nullptr);
}

std::string StopRequest::reason() const {
  switch (caught) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGHUP:
      return "SIGHUP";
    default:
      break;
  }
  return deadline_ > 0 && clock_seconds() >= deadline_ ? "time limit" : "";
}

}  // namespace sinter::train
