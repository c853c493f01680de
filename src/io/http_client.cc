#include "io/http_client.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/log.h"

namespace sinter::io {
namespace {

constexpr size_t kMaxHead = size_t{1} << 20;

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t' || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

struct SslContext {
  SSL_CTX* context = SSL_CTX_new(TLS_client_method());
  SslContext() {
    SSL_CTX_set_default_verify_paths(context);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  }
};

// The connection broke before the answer was there: worth another attempt.
class Broken : public base::Error {
 public:
  using Error::Error;
};

}  // namespace

struct HttpClient::Connection {
  std::string url, host, port, path;
  bool is_tls = false;
  HttpClientOptions options;
  int socket = -1;
  SSL* ssl = nullptr;
  std::string buffer;     // read and not used yet
  bool hands_on = false;  // a part of this answer went to the caller

  Connection(const std::string& from, const HttpClientOptions& own) : url(from), options(own) {
    const size_t scheme = url.find("://");
    SINTER_CHECK(url.starts_with("http://") || url.starts_with("https://"),
                 "'{}' is no address of a server; expected http://HOST:PORT or https://HOST", url);
    is_tls = url.starts_with("https");
    std::string rest = url.substr(scheme + 3);
    if (const size_t slash = rest.find('/'); slash != std::string::npos) {
      path = rest.substr(slash);
      rest.resize(slash);
    }
    while (path.ends_with('/')) path.pop_back();
    const size_t colon = rest.rfind(':');
    const bool has_port = colon != std::string::npos && rest.find(']', colon) == std::string::npos;
    port = has_port ? rest.substr(colon + 1) : is_tls ? "443" : "80";
    host = rest.substr(0, has_port ? colon : rest.size());
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    SINTER_CHECK(!host.empty() && !port.empty() && port.find_first_not_of("0123456789") == std::string::npos,
                 "'{}' is no address of a server; expected http://HOST:PORT or https://HOST", url);
  }
  ~Connection() { close(); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void close() {
    if (ssl) SSL_free(ssl);
    ssl = nullptr;
    if (socket >= 0) ::close(socket);
    socket = -1;
    buffer.clear();
  }

  void open() {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    const int state = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
    if (state != 0) throw Broken(fmt::format("{}: the host is not found: {}", url, ::gai_strerror(state)));
    int error = 0;
    for (const addrinfo* at = found; at && socket < 0; at = at->ai_next) {
      socket = ::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol);
      if (socket < 0) continue;
      const timeval limit{static_cast<time_t>(options.timeout_seconds), 0};
      ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
      const int on = 1;
      ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      if (::connect(socket, at->ai_addr, at->ai_addrlen) == 0) break;
      error = errno;
      ::close(socket);
      socket = -1;
    }
    ::freeaddrinfo(found);
    if (socket < 0)
      throw Broken(fmt::format("{}: no connection: {}; is the server running?", url, std::strerror(error)));
    if (!is_tls) return;
    static const SslContext kContext;
    ssl = SSL_new(kContext.context);
    SSL_set_tlsext_host_name(ssl, host.c_str());
    SSL_set1_host(ssl, host.c_str());
    SSL_set_fd(ssl, socket);
    if (SSL_connect(ssl) != 1) {
      const std::string why = ERR_reason_error_string(ERR_get_error())
                                  ? ERR_reason_error_string(ERR_peek_last_error())
                                  : X509_verify_cert_error_string(SSL_get_verify_result(ssl));
      close();
      base::fail("{}: no TLS connection: {}", url, why);
    }
  }

  void send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ssl ? SSL_write(ssl, bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), 1 << 20)))
                            : ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) throw Broken(fmt::format("{}: the connection broke while a request was sent", url));
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }

  // False at the end of the stream.
  bool receive() {
    char chunk[1 << 16];
    const ssize_t n = ssl ? SSL_read(ssl, chunk, sizeof chunk) : ::recv(socket, chunk, sizeof chunk, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      base::fail("{}: the server has sent nothing for {:.0f} s", url, options.timeout_seconds);
    }
    if (n <= 0) return false;
    buffer.append(chunk, static_cast<size_t>(n));
    return true;
  }

  // The next `count` bytes of a body, as they come.
  void pass_on(size_t count, const OnData& on_data) {
    while (count > 0) {
      if (buffer.empty() && !receive()) throw Broken(fmt::format("{}: the connection broke within an answer", url));
      const size_t n = std::min(count, buffer.size());
      on_data(std::string_view(buffer).substr(0, n));
      buffer.erase(0, n);
      count -= n;
    }
  }
  std::string take_line() {
    size_t end;
    while ((end = buffer.find('\n')) == std::string::npos) {
      SINTER_CHECK(buffer.size() < kMaxHead, "{}: a line of the answer's head is too long", url);
      if (!receive()) throw Broken(fmt::format("{}: the connection broke before an answer", url));
    }
    std::string line(trim(std::string_view(buffer).substr(0, end)));
    buffer.erase(0, end + 1);
    return line;
  }

  void pass_on_chunks(const OnData& on_data) {
    for (;;) {
      const std::string line = take_line();
      size_t size = 0;
      const auto parsed = std::from_chars(line.data(), line.data() + line.size(), size, 16);
      SINTER_CHECK(parsed.ec == std::errc(), "{}: the answer's chunks are damaged", url);
      if (size == 0) break;
      pass_on(size, on_data);
      take_line();
    }
    while (!take_line().empty()) {  // trailers
    }
  }

  HttpAnswer read_answer(const OnData& on_data) {
    HttpAnswer answer;
    std::string line;
    int64_t length = -1;
    bool is_chunked = false, closes = false;
    do {  // an answer of 1xx comes before the real one
      line = take_line();
      SINTER_CHECK(line.starts_with("HTTP/1.") && line.size() >= 12, "{}: the answer is no HTTP: \"{}\"", url,
                   line.substr(0, 60));
      answer.status = std::atoi(line.c_str() + 9);
      closes = line.starts_with("HTTP/1.0");
      while (!(line = take_line()).empty()) {
        const size_t colon = std::min(line.find(':'), line.size() - 1);
        const std::string name = lower(line.substr(0, colon));
        const std::string value(trim(std::string_view(line).substr(colon + 1)));
        if (name == "content-length") length = std::atoll(value.c_str());
        if (name == "transfer-encoding") is_chunked = lower(value).find("chunked") != std::string::npos;
        if (name == "connection") closes = lower(value) == "close";
        if (name == "retry-after") answer.retry_after_seconds = std::max(0.0, std::atof(value.c_str()));
      }
    } while (answer.status >= 100 && answer.status < 200);
    const OnData keep = [&](std::string_view piece) {
      SINTER_CHECK(answer.body.size() + piece.size() <= options.max_bytes, "{}: the answer is longer than {} bytes",
                   url, options.max_bytes);
      answer.body += piece;
    };
    hands_on = on_data && answer.status == 200;
    const OnData& take = hands_on ? on_data : keep;
    if (is_chunked) {
      pass_on_chunks(take);
    } else if (length >= 0) {
      pass_on(static_cast<size_t>(length), take);
    } else if (answer.status != 204 && answer.status != 304) {
      do {
        take(buffer);
        buffer.clear();
      } while (receive());
      closes = true;
    }
    if (closes) close();
    return answer;
  }

  HttpAnswer ask(const std::string& method, const std::string& to, const std::string& body,
                 const OnData& on_data = {}) {
    const bool has_port = port != (is_tls ? "443" : "80");
    std::string request =
        fmt::format("{} {}{} HTTP/1.1\r\nHost: {}{}\r\nAccept: application/json\r\nUser-Agent: sinter\r\n", method,
                    path, to, host, has_port ? ":" + port : "");
    for (const auto& [name, value] : options.headers) request += fmt::format("{}: {}\r\n", name, value);
    if (method == "POST")
      request += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
    request += "\r\n" + body;
    const bool was_kept = socket >= 0;
    hands_on = false;
    try {
      if (!was_kept) open();
      send(request);
      return read_answer(on_data);
    } catch (const Broken&) {
      close();
      if (!was_kept || hands_on) throw;  // what was handed on cannot be taken back
    } catch (...) {
      close();
      throw;
    }
    open();  // the kept connection was closed meanwhile
    try {
      send(request);
      return read_answer(on_data);
    } catch (...) {
      close();
      throw;
    }
  }
};

HttpClientOptions with_api_key(const std::string& key) {
  HttpClientOptions options;
  if (!key.empty()) options.headers.emplace_back("Authorization", "Bearer " + key);
  return options;
}

HttpClient::HttpClient(const std::string& url, const HttpClientOptions& options)
    : connection_(std::make_unique<Connection>(url, options)) {}
HttpClient::~HttpClient() = default;
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;

const std::string& HttpClient::url() const { return connection_->url; }
HttpAnswer HttpClient::get(const std::string& path) { return connection_->ask("GET", path, ""); }
HttpAnswer HttpClient::post_json(const std::string& path, const std::string& body, const OnData& on_data) {
  return connection_->ask("POST", path, body, on_data);
}

std::string HttpClient::post_until_answered(const std::string& path, const std::string& body, int tries) {
  for (int attempt = 1;; ++attempt) {
    double wait = .25 * static_cast<double>(1 << std::min(attempt, 8));
    try {
      HttpAnswer answer = post_json(path, body);
      if (answer.status / 100 == 2) return std::move(answer.body);
      const int s = answer.status;
      const bool may_pass = s == 408 || s == 429 || s == 500 || s == 502 || s == 503 || s == 504;
      SINTER_CHECK(may_pass && attempt < tries, "{}{}: the server answers {}: {}", url(), path, s,
                   answer.body.substr(0, 300));
      wait = std::max(wait, std::min(answer.retry_after_seconds, 60.0));
    } catch (const Broken& e) {
      if (attempt >= tries) throw;
      base::log_warning("{}; attempt {} of {}", e.what(), attempt + 1, tries);
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(wait));
  }
}

}  // namespace sinter::io
