// The log: lines on standard error with time and level. Results a user asked for go to standard output instead. The
// environment's SINTER_LOG names the least important level that is written; info when it is not set.
#pragma once
#include <fmt/core.h>

#include <optional>
#include <string_view>

namespace sinter::base {

enum class LogLevel { debug, info, warning, error };

// By its name in lower case; nothing for any other word.
std::optional<LogLevel> log_level_named(std::string_view name);
void set_log_level(LogLevel level);
// On ranks other than 0 only warnings and errors are written, each with the rank.
void set_log_rank(int rank);
void log_line(LogLevel level, std::string_view text);

template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::info, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::warning, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::error, fmt::format(format, std::forward<Args>(args)...));
}

// A line that is redrawn in place on a terminal, cut to its width, and written every ten seconds elsewhere; work that
// is done sooner shows none. One at a time. Log lines take its place on the terminal; whoever prints to standard output
// calls finish() before.
class ProgressLine {
 public:
  ProgressLine();
  void update(std::string_view text);
  void finish();  // ends the line; called by the destructor too
  ~ProgressLine();

 private:
  void show();
  bool is_terminal_ = false, has_shown_ = false;
  double last_shown_ = 0;
  std::string latest_;  // not shown yet
};

}  // namespace sinter::base
