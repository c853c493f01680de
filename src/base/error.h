// The two error classes of the program and the check that throws them.
//
// Error      the input, the file or the request is wrong: message says what was found, what was expected, what to do.
// UsageError the command line itself is wrong: exit status 2.
// Broken invariants of our own are asserts, not exceptions.
#pragma once
#include <fmt/core.h>

#include <stdexcept>
#include <string>

namespace sinter::base {

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class UsageError : public Error {
 public:
  using Error::Error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void fail_usage(fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace sinter::base

// Throws base::Error with the formatted message unless the condition holds.
#define SINTER_CHECK(condition, ...)     \
  do {                                   \
    if (!(condition)) [[unlikely]]       \
      ::sinter::base::fail(__VA_ARGS__); \
  } while (0)
