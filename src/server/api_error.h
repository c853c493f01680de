// A request that is refused: the HTTP status and what the client is told.
#pragma once
#include <string>
#include <utility>

#include "base/error.h"

namespace sinter::server {

class ApiError : public base::Error {
 public:
  ApiError(int status, const std::string& message, std::string param = "", std::string code = "")
      : Error(message), status(status), param(std::move(param)), code(std::move(code)) {}
  int status;
  std::string param;  // the field that is wrong; may be empty
  std::string code;
  double retry_after_seconds = 0;  // with 429 and 503
};

// A 400 about one field.
template <class... Args>
[[noreturn]] void refuse(const std::string& param, fmt::format_string<Args...> format, Args&&... args) {
  throw ApiError(400, fmt::format(format, std::forward<Args>(args)...), param);
}

// "invalid_request_error" and so on, as OpenAI names them; Anthropic's names for the same.
std::string openai_error_type(int status);
std::string anthropic_error_type(int status);
// The body of an error reply.
std::string openai_error_body(const ApiError& error);
std::string anthropic_error_body(const ApiError& error);

}  // namespace sinter::server
