#include "train/stop_request.h"

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>

#include "base/error.h"

namespace sinter::train {
namespace {

constexpr std::array kSignals{SIGTERM, SIGINT, SIGUSR1, SIGHUP};
volatile std::sig_atomic_t caught = 0;
std::array<struct sigaction, kSignals.size()> previous;

void on_signal(int number) {
  if (number == SIGINT && caught == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  caught = number;
}

}  // namespace

double StopRequest::clock_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

StopRequest::StopRequest(const spec::CheckpointRecipe& recipe, double began) {
  if (recipe.time_limit > 0) {
    deadline_ = began + recipe.time_limit - recipe.time_margin;
  } else if (const char* text = std::getenv("SLURM_JOB_END_TIME"); text && *text) {
    char* end = nullptr;
    deadline_ = std::strtod(text, &end) - recipe.time_margin;
    SINTER_CHECK(*end == 0, "SLURM_JOB_END_TIME is '{}'; expected seconds since the epoch", text);
  }
  caught = 0;
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
