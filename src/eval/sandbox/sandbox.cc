#include "eval/sandbox/sandbox.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "eval/sandbox/seccomp_filter.h"

namespace sinter::eval {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr size_t kTokenBytes = 16;

std::string find_program(const char* name) {
  for (const char* folder : {"/usr/bin/", "/usr/local/bin/", "/bin/"}) {
    if (const std::string path = std::string(folder) + name; ::access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

// A file in memory, read from its beginning.
int make_memory_file(const char* name, const void* data, size_t size) {
  const int fd = ::memfd_create(name, 0);
  SINTER_CHECK(fd >= 0, "a file in memory cannot be made for the sandbox: {}", std::strerror(errno));
  for (size_t done = 0; done < size;) {
    const ssize_t n = ::write(fd, static_cast<const char*>(data) + done, size - done);
    if (n <= 0) {
      ::close(fd);
      base::fail("a program of {} bytes cannot be handed to the sandbox: {}", size, std::strerror(errno));
    }
    done += static_cast<size_t>(n);
  }
  ::lseek(fd, 0, SEEK_SET);
  return fd;
}

std::vector<std::string> make_command(const std::string& bwrap, const std::string& python, const SandboxLimits& limits,
                                      int program_fd, int filter_fd) {
  std::vector<std::string> words{bwrap,        "--unshare-all", "--die-with-parent", "--new-session", "--clearenv",
                                 "--cap-drop", "ALL",           "--hostname",        "sandbox"};
  auto add = [&](std::initializer_list<std::string> more) { words.insert(words.end(), more); };
  add({"--ro-bind", "/usr", "/usr"});
  for (const char* name : {"lib", "lib64", "bin", "sbin"}) {
    const fs::path path = fs::path("/") / name;
    if (fs::is_symlink(path)) {
      add({"--symlink", "usr/" + std::string(name), path.string()});
    } else if (fs::is_directory(path)) {
      add({"--ro-bind", path.string(), path.string()});
    }
  }
  add({"--proc", "/proc", "--dev", "/dev", "--size", std::to_string(limits.file_bytes), "--tmpfs", "/tmp", "--chdir",
       "/tmp", "--setenv", "PATH", "/usr/bin", "--setenv", "LANG", "C.UTF-8", "--setenv", "PYTHONHASHSEED", "0"});
  if (filter_fd >= 0) add({"--seccomp", std::to_string(filter_fd)});
  // All read-only in the end, /proc too: root's writes to the kernel's settings below /proc/sys would reach the
  // machine.
  add({"--ro-bind-data", std::to_string(program_fd), "/tmp/program.py", "--remount-ro", "/dev", "--remount-ro", "/",
       "--remount-ro", "/proc", python, "-I", "-B", "/tmp/program.py"});
  return words;
}

void set_limit(int resource, int64_t value) {
  const rlimit limit{static_cast<rlim_t>(value), static_cast<rlim_t>(value)};
  ::setrlimit(static_cast<__rlimit_resource>(resource), &limit);
}

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    SINTER_CHECK(::pipe2(ends, O_CLOEXEC) == 0, "a pipe to the sandbox cannot be made: {}", std::strerror(errno));
    read_end = ends[0];
    write_end = ends[1];
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close(read_end);
    close(write_end);
  }
  static void close(int& end) {
    if (end >= 0) ::close(end);
    end = -1;
  }
};

// What a program's process has beside its output.
struct Channels {
  Pipe input, verdict;
};

// In the child, between fork and exec: only calls that are safe there.
[[noreturn]] void start(char* const* words, const SandboxLimits& limits, const Channels& channels, int output) {
  ::setpgid(0, 0);
  ::dup2(channels.input.read_end, 0);
  ::fcntl(channels.verdict.write_end, F_SETFD, 0);  // stays open over exec
  ::dup2(output, 1);
  ::dup2(output, 2);
  set_limit(RLIMIT_AS, limits.memory_bytes);
  set_limit(RLIMIT_CPU, static_cast<int64_t>(limits.seconds) + 2);
  set_limit(RLIMIT_FSIZE, limits.file_bytes);
  set_limit(RLIMIT_CORE, 0);
  set_limit(RLIMIT_NOFILE, 64);
  ::execv(words[0], words);
  ::_exit(127);
}

// Output until the program closes it, the time is over or nothing more is wanted. True: in time.
bool read_output(int fd, Clock::time_point deadline, int64_t most, std::string& output) {
  char buffer[4096];
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd waiting{fd, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return true;
    const int64_t room = most - static_cast<int64_t>(output.size());
    output.append(buffer, static_cast<size_t>(std::clamp<int64_t>(room, 0, n)));  // the rest is read and dropped
  }
}

// Waits for the end of a process that has closed its output, which may run on. True: in time.
bool await_end(pid_t child, Clock::time_point deadline, int& status) {
  for (;;) {
    const pid_t ended = ::waitpid(child, &status, WNOHANG);
    if (ended == child || (ended < 0 && errno != EINTR)) return true;
    if (Clock::now() >= deadline) return false;
    ::poll(nullptr, 0, 1);
  }
}

SandboxResult run_bwrap(const std::string& program, const SandboxLimits& limits, Channels& channels) {
  const std::string bwrap = find_program("bwrap"), python = find_program("python3");
  const int program_fd = make_memory_file("program", program.data(), program.size());
  const std::vector<unsigned char> filter = make_seccomp_filter();
  const int filter_fd = filter.empty() ? -1 : make_memory_file("filter", filter.data(), filter.size());
  std::vector<std::string> words = make_command(bwrap, python, limits, program_fd, filter_fd);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  Pipe::close(channels.input.write_end);
  Pipe output;
  const pid_t child = ::fork();
  SINTER_CHECK(child >= 0, "the sandbox cannot be started: {}", std::strerror(errno));
  if (child == 0) start(pointers.data(), limits, channels, output.write_end);
  Pipe::close(output.write_end);
  Pipe::close(channels.verdict.write_end);
  ::close(program_fd);
  if (filter_fd >= 0) ::close(filter_fd);
  SandboxResult result;
  const auto length = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits.seconds));
  const Clock::time_point deadline = Clock::now() + length;
  int status = 0;
  result.timed_out = !read_output(output.read_end, deadline, limits.output_bytes, result.output) ||
                     !await_end(child, deadline, status);
  // bwrap is the first process of its own process namespace's parent: when it dies everything inside dies with it.
  if (result.timed_out) {
    ::kill(-child, SIGKILL);
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
  }
  result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.passed = !result.timed_out && result.status == 0;
  return result;
}

// What an ended program has written there, not waited for: a process that still holds the other end may be about to
// end.
std::string take_verdict(int fd) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  std::string text(kTokenBytes + 1, '\0');
  const ssize_t n = ::read(fd, text.data(), text.size());
  text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  return text;
}

std::string find_problem() {
  if (find_program("bwrap").empty()) return "bubblewrap is not installed (Debian: apt install bubblewrap)";
  if (find_program("python3").empty()) return "there is no python3 (Debian: apt install python3)";
  SandboxLimits limits;
  limits.seconds = 20;
  Channels channels;
  const SandboxResult result = run_bwrap("print('ready')", limits, channels);
  if (result.passed && result.output == "ready\n") return "";
  return "bubblewrap cannot make a sandbox here (" + result.output +
         "): user namespaces have to be allowed (sysctl kernel.unprivileged_userns_clone=1)";
}

}  // namespace

const std::string& sandbox_problem() {
  static const std::string kProblem = find_problem();
  return kProblem;
}

SandboxResult run_python(const std::string& program, const SandboxLimits& limits) {
  SINTER_CHECK(sandbox_problem().empty(), "programs cannot be run safely: {}", sandbox_problem());
  // Ending by itself is not enough: sys.exit(0) and os._exit(0) in the middle have run no test, and any fixed status or
  // text is one that the program can produce. The wrapper takes a random token from its input, which is empty then, and
  // gives it back once the program has come to its end.
  std::string token(kTokenBytes, '\0'), quoted;
  SINTER_CHECK(::getentropy(token.data(), token.size()) == 0, "no random numbers: {}", std::strerror(errno));
  for (unsigned char c : program) quoted += fmt::format("\\x{:02x}", c);
  Channels channels;
  SINTER_CHECK(::write(channels.input.write_end, token.data(), token.size()) == static_cast<ssize_t>(token.size()),
               "the sandbox's input cannot be written: {}", std::strerror(errno));
  SandboxResult result =
      run_bwrap(fmt::format("import os\ndef run(source, token, write=os.write, leave=os._exit):\n"
                            "    try:\n        exec(source.decode(), {{}})\n"
                            "    except BaseException as error:\n        print(repr(error), flush=True)\n"
                            "        leave(1)\n    write({}, token)\n    leave(0)\nrun(b'{}', os.read(0, {}))\n",
                            channels.verdict.write_end, quoted, kTokenBytes),
                limits, channels);
  result.passed = result.passed && take_verdict(channels.verdict.read_end) == token;
  return result;
}

}  // namespace sinter::eval
