#include "server/api_error.h"

#include <nlohmann/json.hpp>

namespace sinter::server {

std::string openai_error_type(int status) {
  if (status == 401 || status == 403) return "authentication_error";
  if (status == 404) return "not_found_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

std::string anthropic_error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

namespace {
std::string dump(const nlohmann::ordered_json& value) {
  return value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}
nlohmann::ordered_json text_or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}
}  // namespace

std::string openai_error_body(const ApiError& error) {
  nlohmann::ordered_json body;
  body["error"] = {{"message", error.what()},
                   {"type", openai_error_type(error.status)},
                   {"param", text_or_null(error.param)},
                   {"code", text_or_null(error.code)}};
  return dump(body);
}

std::string anthropic_error_body(const ApiError& error) {
  nlohmann::ordered_json body;
  body["type"] = "error";
  body["error"] = {{"type", anthropic_error_type(error.status)}, {"message", error.what()}};
  return dump(body);
}

}  // namespace sinter::server
