#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace sinter::base {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    default:
      return spdlog::level::err;
  }
}

spdlog::logger& logger() {
  static std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("sinter", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%H:%M:%S %^%l%$ %v");
    made->flush_on(spdlog::level::info);
    const char* asked = std::getenv("SINTER_LOG");
    if (asked && *asked) {
      if (const auto level = log_level_named(asked)) {
        made->set_level(to_spdlog(*level));
      } else {
        made->warn("SINTER_LOG is '{}'; expected debug, info, warning or error", asked);
      }
    }
    return made;
  }();
  return *instance;
}

// Whether the terminal's last line is a progress line that has not ended.
std::atomic<bool> line_is_open = false;

// A line that wraps cannot be drawn over: cut it where the terminal ends, before the bytes of a character.
std::string_view fit_terminal(std::string_view text) {
  winsize size{};
  if (::ioctl(2, TIOCGWINSZ, &size) != 0 || size.ws_col < 2 || text.size() < size.ws_col) return text;
  size_t end = size.ws_col - 1;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

std::optional<LogLevel> log_level_named(std::string_view name) {
  if (name == "debug") return LogLevel::debug;
  if (name == "info") return LogLevel::info;
  if (name == "warning") return LogLevel::warning;
  if (name == "error") return LogLevel::error;
  return std::nullopt;
}

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

void set_log_rank(int rank) {
  if (rank == 0) return;
  logger().set_pattern(fmt::format("%H:%M:%S %^%l%$ [rank {}] %v", rank));
  logger().set_level(spdlog::level::warn);
}

void log_line(LogLevel level, std::string_view text) {
  if (!logger().should_log(to_spdlog(level))) return;
  if (line_is_open.exchange(false)) std::fputs("\r\033[K", stderr);  // takes the place of the progress line
  logger().log(to_spdlog(level), "{}", text);
}

ProgressLine::ProgressLine() : is_terminal_(::isatty(2) == 1), last_shown_(now_seconds()) {}

void ProgressLine::update(std::string_view text) {
  latest_ = text;
  const double now = now_seconds();
  if (now - last_shown_ < (is_terminal_ ? 0.1 : 10.0)) return;
  last_shown_ = now;
  show();
}

void ProgressLine::show() {
  std::string_view text = latest_;
  if (is_terminal_) text = fit_terminal(text);
  std::fprintf(stderr, is_terminal_ ? "\r%.*s\033[K" : "%.*s\n", static_cast<int>(text.size()), text.data());
  std::fflush(stderr);
  if (is_terminal_) line_is_open = true;
  has_shown_ = true;
  latest_.clear();
}

void ProgressLine::finish() {
  if (is_terminal_ && has_shown_ && !latest_.empty()) show();  // where the work ended, not where it was last looked at
  if (is_terminal_ && line_is_open.exchange(false)) std::fputc('\n', stderr);
}

ProgressLine::~ProgressLine() { finish(); }

}  // namespace sinter::base
