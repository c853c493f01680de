#include "server/http.h"

namespace sinter::server {

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return {};
}

std::string_view status_text(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Payload Too Large";
    case 422:
      return "Unprocessable Entity";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Status";
  }
}

void Reply::wake_up() {
  std::function<void()> wake;
  {
    std::lock_guard lock(mutex_);
    wake = wake_;
  }
  if (wake) wake();
}

void Reply::send(int status, std::string content_type, std::string body, Headers headers) {
  std::function<void()> action;
  {
    std::lock_guard lock(mutex_);
    if (has_begun_ || is_closed_) return;
    has_begun_ = is_finished_ = true;
    pending_.has_head = pending_.is_finished = true;
    pending_.head = {status, std::move(content_type), std::move(headers), false};
    pending_.body = std::move(body);
    action = std::exchange(on_close_, nullptr);  // it may hold what holds this
  }
  wake_up();
}

void Reply::begin_stream(std::string content_type, Headers headers) {
  {
    std::lock_guard lock(mutex_);
    if (has_begun_ || is_closed_) return;
    has_begun_ = true;
    pending_.has_head = true;
    pending_.head = {200, std::move(content_type), std::move(headers), true};
  }
  wake_up();
}

bool Reply::write(std::string_view text) {
  {
    std::lock_guard lock(mutex_);
    if (is_closed_ || is_finished_ || !has_begun_) return false;
    if (pending_.body.size() + text.size() > max_pending_bytes) return false;
    pending_.body += text;
  }
  wake_up();
  return true;
}

void Reply::finish() {
  std::function<void()> action;
  {
    std::lock_guard lock(mutex_);
    if (is_finished_ || is_closed_ || !has_begun_) return;
    is_finished_ = true;
    pending_.is_finished = true;
    action = std::exchange(on_close_, nullptr);
  }
  wake_up();
}

void Reply::on_close(std::function<void()> action) {
  {
    std::lock_guard lock(mutex_);
    if (is_finished_) return;
    if (!is_closed_) {
      on_close_ = std::move(action);
      return;
    }
  }
  action();
}

bool Reply::is_closed() const {
  std::lock_guard lock(mutex_);
  return is_closed_;
}

bool Reply::is_finished() const {
  std::lock_guard lock(mutex_);
  return is_finished_;
}

Reply::Batch Reply::take() {
  std::lock_guard lock(mutex_);
  return std::exchange(pending_, Batch{});
}

void Reply::set_wake(std::function<void()> wake) {
  std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

void Reply::close() {
  std::function<void()> action;
  {
    std::lock_guard lock(mutex_);
    if (is_closed_) return;
    is_closed_ = true;
    if (!is_finished_) action = std::move(on_close_);
    on_close_ = nullptr;
    wake_ = nullptr;
  }
  if (action) action();
}

}  // namespace sinter::server
