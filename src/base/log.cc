#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>

namespace sinter::base {
namespace {

spdlog::logger& logger() {
  static std::shared_ptr<spdlog::logger> instance = [] {
    auto made = std::make_shared<spdlog::logger>("sinter", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%H:%M:%S %^%l%$ %v");
    made->flush_on(spdlog::level::info);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::debug: return spdlog::level::debug;
    case LogLevel::info: return spdlog::level::info;
    case LogLevel::warning: return spdlog::level::warn;
    default: return spdlog::level::err;
  }
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

void set_log_rank(int rank) {
  if (rank == 0) return;
  logger().set_pattern(fmt::format("%H:%M:%S %^%l%$ [rank {}] %v", rank));
  logger().set_level(spdlog::level::warn);
}

void log_line(LogLevel level, std::string_view text) { logger().log(to_spdlog(level), "{}", text); }

ProgressLine::ProgressLine() : is_terminal_(::isatty(2) == 1) {}

void ProgressLine::update(std::string_view text) {
  double now = now_seconds();
  if (now - last_shown_ < (is_terminal_ ? 0.1 : 10.0)) return;
  last_shown_ = now;
  std::fprintf(stderr, is_terminal_ ? "\r%.*s\033[K" : "%.*s\n", static_cast<int>(text.size()), text.data());
  std::fflush(stderr);
  open_ = is_terminal_;
}

void ProgressLine::finish() {
  if (open_) std::fputc('\n', stderr);
  open_ = false;
}

ProgressLine::~ProgressLine() { finish(); }

}  // namespace sinter::base
