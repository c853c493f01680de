#include "bench/http_client.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace sinter::bench {

HttpClient::HttpClient(const std::string& url) {
  std::string rest = url;
  if (rest.starts_with("http://")) {
    rest = rest.substr(7);
  } else if (rest.find("://") != std::string::npos) {
    base::fail_usage("'{}' is not an address that can be measured; expected http://HOST:PORT", url);
  }
  const size_t slash = rest.find('/');
  if (slash != std::string::npos) {
    base_ = rest.substr(slash);
    rest.resize(slash);
  }
  while (base_.ends_with('/')) base_.pop_back();
  if (base_.ends_with("/v1")) base_.resize(base_.size() - 3);  // as clients write it
  const size_t colon = rest.rfind(':');
  host_ = rest.substr(0, colon);
  port_ = colon == std::string::npos ? "80" : rest.substr(colon + 1);
  if (host_.empty() || port_.empty()) base::fail_usage("'{}' is not an address; expected http://HOST:PORT", url);
}

HttpClient::~HttpClient() { disconnect(); }

void HttpClient::disconnect() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
  buffer_.clear();
  at_ = 0;
}

void HttpClient::connect() {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int problem = ::getaddrinfo(host_.c_str(), port_.c_str(), &hints, &found);
  SINTER_CHECK(problem == 0, "cannot find '{}:{}': {}", host_, port_, ::gai_strerror(problem));
  int error = 0;
  for (const addrinfo* a = found; a && socket_ < 0; a = a->ai_next) {
    const int made = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (made < 0) {
      error = errno;
    } else if (::connect(made, a->ai_addr, a->ai_addrlen) == 0) {
      socket_ = made;
    } else {
      error = errno;
      ::close(made);
    }
  }
  ::freeaddrinfo(found);
  SINTER_CHECK(socket_ >= 0, "cannot reach {}:{}: {}; is the server running?", host_, port_, std::strerror(error));
  const int on = 1;
  ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const timeval limit{static_cast<time_t>(timeout_seconds), 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

void HttpClient::send(std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    SINTER_CHECK(sent > 0, "{}:{} has closed the connection: {}", host_, port_, std::strerror(errno));
    text.remove_prefix(static_cast<size_t>(sent));
  }
}

bool HttpClient::fill() {
  if (at_ > 0) buffer_.erase(0, std::exchange(at_, 0));
  char piece[16384];
  for (;;) {
    const ssize_t got = ::recv(socket_, piece, sizeof piece, 0);
    if (got < 0 && errno == EINTR) continue;
    SINTER_CHECK(got >= 0, "{}:{}: {}", host_, port_,
                 errno == EAGAIN ? "no answer came in time" : std::strerror(errno));
    has_read_ |= got > 0;
    buffer_.append(piece, static_cast<size_t>(got));
    return got > 0;
  }
}

std::string HttpClient::read_line() {
  for (;;) {
    const size_t end = buffer_.find("\r\n", at_);
    if (end != std::string::npos) {
      std::string line = buffer_.substr(at_, end - at_);
      at_ = end + 2;
      return line;
    }
    SINTER_CHECK(buffer_.size() - at_ < 65536 && fill(), "{}:{} ended its answer too early", host_, port_);
  }
}

void HttpClient::read_exactly(size_t count, const std::function<void(std::string_view)>& take) {
  while (count > 0) {
    if (at_ == buffer_.size()) SINTER_CHECK(fill(), "{}:{} ended its answer too early", host_, port_);
    const size_t now = std::min(count, buffer_.size() - at_);
    take(std::string_view(buffer_).substr(at_, now));
    at_ += now;
    count -= now;
  }
}

HttpReply HttpClient::read_reply(const std::function<void(std::string_view)>& on_data) {
  HttpReply reply;
  const std::string status = read_line();
  SINTER_CHECK(status.starts_with("HTTP/1.") && status.size() > 12, "{}:{} does not speak HTTP: '{}'", host_, port_,
               status.substr(0, 60));
  reply.status = std::atoi(status.c_str() + 9);
  int64_t length = -1;
  bool is_chunked = false, closes = false;
  for (std::string line = read_line(); !line.empty(); line = read_line()) {
    const size_t colon = std::min(line.find(':'), line.size());
    std::string name = line.substr(0, colon), value = colon < line.size() ? line.substr(colon + 1) : "";
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    value.erase(0, value.find_first_not_of(" \t"));
    if (name == "content-length") length = std::atoll(value.c_str());
    if (name == "transfer-encoding") is_chunked = value.find("chunked") != std::string::npos;
    if (name == "connection") closes = value == "close";
    if (name == "retry-after") reply.retry_after_seconds = std::atof(value.c_str());
  }
  const std::function<void(std::string_view)> keep = [&](std::string_view piece) { reply.body += piece; };
  const auto& take = on_data && reply.status == 200 ? on_data : keep;
  if (is_chunked) {
    for (;;) {
      const size_t size = std::strtoull(read_line().c_str(), nullptr, 16);
      read_exactly(size, take);
      read_line();
      if (size == 0) break;
    }
  } else if (length >= 0) {
    read_exactly(static_cast<size_t>(length), take);
  } else {
    for (bool goes_on = true; goes_on; goes_on = fill()) read_exactly(buffer_.size() - at_, take);
    closes = true;
  }
  if (closes) disconnect();
  return reply;
}

HttpReply HttpClient::ask(const std::string& method, const std::string& path, const std::string& body,
                          const std::function<void(std::string_view)>& on_data) {
  std::string text = method + " " + base_ + path + " HTTP/1.1\r\nHost: " + host_ + ":" + port_ + "\r\n";
  for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
  if (method == "POST")
    text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  text += "\r\n" + body;
  const bool was_connected = socket_ >= 0;
  has_read_ = false;
  try {
    if (!was_connected) connect();
    send(text);
    return read_reply(on_data);
  } catch (const base::Error&) {
    disconnect();
    // A kept connection may have been closed meanwhile: once more on a new one.
    if (!was_connected || has_read_) throw;
  }
  connect();
  try {
    send(text);
    return read_reply(on_data);
  } catch (const base::Error&) {
    disconnect();
    throw;
  }
}

HttpReply HttpClient::get(const std::string& path) { return ask("GET", path, "", {}); }

HttpReply HttpClient::post(const std::string& path, const std::string& body,
                           const std::function<void(std::string_view)>& on_data) {
  return ask("POST", path, body, on_data);
}

}  // namespace sinter::bench
