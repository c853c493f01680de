#include "tune/rewards/outside_program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"

extern char** environ;

namespace sinter::tune {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kMostStarts = 3;
constexpr size_t kMaxLineBytes = size_t{16} << 20;

std::string request(const RewardInput& input) {
  nlohmann::json row = nlohmann::json::parse(input.row, nullptr, false);
  if (row.is_discarded()) row = nullptr;
  const nlohmann::json line{{"prompt", input.prompt},
                            {"completion", input.completion},
                            {"row", std::move(row)},
                            {"tokens", input.tokens},
                            {"finished", input.is_finished}};
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

OutsideProgram::OutsideProgram(std::vector<std::string> command, double seconds_an_answer)
    : command_(std::move(command)), seconds_(seconds_an_answer) {
  SINTER_CHECK(!command_.empty(), "the reward program needs tune.reward_command: the program and its arguments");
  SINTER_CHECK(seconds_ > 0, "a reward's seconds are {}, expected more than 0", seconds_);
}

OutsideProgram::~OutsideProgram() { stop(); }

void OutsideProgram::start() {
  int ends[2];
  SINTER_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "cannot make a socket: {}",
               std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  // A process group of its own: stop() ends what the program started, too.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  std::vector<char*> arguments;
  for (std::string& word : command_) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int error = ::posix_spawnp(&pid, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  if (error != 0) {
    ::close(ends[0]);
    base::fail("cannot start the reward program '{}': {}", command_[0], std::strerror(error));
  }
  socket_ = ends[0];
  pid_ = pid;
  held_.clear();
}

void OutsideProgram::stop() {
  if (socket_ >= 0) ::close(socket_);
  if (pid_ > 0) {
    ::kill(-pid_, SIGKILL);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
  }
  socket_ = pid_ = -1;
}

bool OutsideProgram::talk(const std::string& text, size_t wanted, std::vector<std::string>& answers) {
  size_t sent = 0;
  auto last_sign = Clock::now();
  while (answers.size() < wanted) {
    const double left = seconds_ - std::chrono::duration<double>(Clock::now() - last_sign).count();
    if (left <= 0) return false;
    pollfd state{socket_, static_cast<short>(POLLIN | (sent < text.size() ? POLLOUT : 0)), 0};
    const int ready = ::poll(&state, 1, static_cast<int>(std::ceil(std::min(left, 1e6) * 1000)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    if (state.revents & POLLIN) {
      char bytes[1 << 16];
      const ssize_t count = ::recv(socket_, bytes, sizeof bytes, MSG_DONTWAIT);
      if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return false;
      if (count > 0) held_.append(bytes, static_cast<size_t>(count));
      for (size_t end; answers.size() < wanted && (end = held_.find('\n')) != std::string::npos;) {
        answers.push_back(held_.substr(0, end));
        held_.erase(0, end + 1);
        last_sign = Clock::now();
      }
      if (held_.size() > kMaxLineBytes) return false;
    } else if (state.revents & POLLOUT) {
      const ssize_t count = ::send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count < 0 && errno != EAGAIN && errno != EINTR) return false;
      if (count > 0) sent += static_cast<size_t>(count);
    } else {
      return false;  // it hung up
    }
  }
  return true;
}

double OutsideProgram::parse(const std::string& line) {
  const nlohmann::json value = nlohmann::json::parse(line, nullptr, false);
  const bool is_object = value.is_object() && value.contains("reward");
  const nlohmann::json& reward = is_object ? value["reward"] : value;
  if (reward.is_number() && std::isfinite(reward.get<double>())) return reward.get<double>();
  if (reward.is_boolean()) return reward.get<bool>() ? 1 : 0;
  if (!reward.is_null()) {
    if (num_bad_lines_++ == 0)
      base::log_warning("the reward program '{}' wrote a line that is no reward: '{}'", command_[0],
                        line.substr(0, 120));
  }
  return std::nan("");
}

std::vector<double> OutsideProgram::score(std::span<const RewardInput> inputs) {
  std::vector<double> rewards(inputs.size(), std::nan(""));
  if (inputs.empty()) return rewards;
  if (pid_ < 0) start();
  std::string text;
  for (const RewardInput& input : inputs) text += request(input);
  std::vector<std::string> answers;
  const bool is_well = talk(text, inputs.size(), answers);
  for (size_t i = 0; i < answers.size(); ++i) rewards[i] = parse(answers[i]);
  if (!answers.empty()) starts_without_answer_ = 0;
  if (is_well) return rewards;
  stop();
  starts_without_answer_ += answers.empty();
  SINTER_CHECK(starts_without_answer_ < kMostStarts,
               "the reward program '{}' was started {} times and answered nothing: it should write a line such as "
               "{{\"reward\": 1}} for every line it reads, within {} s, and flush it",
               command_[0], kMostStarts, seconds_);
  base::log_warning("the reward program '{}' ended or was silent for {} s: {} of {} answers have no reward",
                    command_[0], seconds_, inputs.size() - answers.size(), inputs.size());
  return rewards;
}

}  // namespace sinter::tune
