#include "base/process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <thread>

#include "base/error.h"

extern char** environ;

namespace sinter::base {
namespace {

std::vector<char*> pointers_of(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> merged_environment(const std::vector<std::string>& added) {
  std::vector<std::string> out = added;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('=') + 1);
    bool is_replaced = false;
    for (const std::string& a : added) is_replaced |= a.starts_with(name);
    if (!is_replaced) out.emplace_back(text);
  }
  return out;
}

}  // namespace

ProcessResult run_process(const ProcessOptions& options) {
  std::vector<std::string> arguments = options.arguments, environment = merged_environment(options.environment);
  SINTER_CHECK(!arguments.empty(), "no program to run");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const char* output = options.output.empty() ? "/dev/null" : options.output.c_str();
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, arguments[0].c_str(), &actions, nullptr, pointers_of(arguments).data(),
                                   pointers_of(environment).data());
  posix_spawn_file_actions_destroy(&actions);
  SINTER_CHECK(error == 0, "cannot start '{}': {}", arguments[0], std::strerror(error));
  ProcessResult result;
  const auto start = std::chrono::steady_clock::now();
  for (int status = 0;;) {
    const bool may_wait = options.timeout_seconds <= 0 || result.timed_out;
    const pid_t ended = ::waitpid(pid, &status, may_wait ? 0 : WNOHANG);
    if (ended == pid) {
      result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      return result;
    }
    SINTER_CHECK(ended == 0 || errno == EINTR, "cannot wait for '{}': {}", arguments[0], std::strerror(errno));
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (options.timeout_seconds > 0 && waited.count() > options.timeout_seconds) {
      result.timed_out = true;
      ::kill(pid, SIGKILL);
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

std::string program_path() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  SINTER_CHECK(!error, "cannot tell where this program lies: {}", error.message());
  return path;
}

}  // namespace sinter::base
