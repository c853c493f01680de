// Any bytes sent to the HTTP server are answered with HTTP or with a closed connection, and the next client is served.
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "server/http_server.h"

namespace {

using namespace sinter::server;  // NOLINT

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

const std::string& socket_path() {
  static const std::string path = "/tmp/http_fuzz." + std::to_string(::getpid());
  return path;
}

// Answers with the body it got: at once, or as a stream.
void answer(const HttpRequest& request, const std::shared_ptr<Reply>& reply) {
  if (request.path != "/stream") return reply->send(200, "text/plain", request.method + request.body);
  reply->begin_stream("text/event-stream");
  reply->write("data: " + request.body + "\n\n");
  reply->finish();
}

// Everything that comes back after `sent`, until the server closes. `is_last`: nothing more will be sent, and the
// server is told so; a reply may be lost then.
std::string exchange(const std::string& sent, bool is_last) {
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  std::strncpy(where.sun_path, socket_path().c_str(), sizeof where.sun_path - 1);
  if (fd < 0 || ::connect(fd, reinterpret_cast<const sockaddr*>(&where), sizeof where) != 0)
    fail("the server takes no connection");
  for (size_t done = 0; done < sent.size();) {
    const ssize_t n = ::send(fd, sent.data() + done, sent.size() - done, MSG_NOSIGNAL);
    if (n <= 0) break;  // it has refused what came before
    done += static_cast<size_t>(n);
  }
  std::string reply;
  if (is_last) ::shutdown(fd, SHUT_WR);
  char buffer[4096];
  for (ssize_t n; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) reply.append(buffer, static_cast<size_t>(n));
  ::close(fd);
  return reply;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static HttpServer server({.unix_socket = socket_path(), .max_body_bytes = 4096, .read_seconds = 1}, answer, {});
  const std::string reply = exchange(std::string(reinterpret_cast<const char*>(data), size), true);
  if (!reply.empty() && !reply.starts_with("HTTP/1.1 ")) fail("not HTTP: " + reply.substr(0, 80));
  static int64_t count = 0;
  if (++count % 64 == 0) {
    const std::string right = exchange("POST /x HTTP/1.1\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", false);
    if (!right.starts_with("HTTP/1.1 200") || !right.ends_with("POSTok")) fail("the next client got: " + right);
    if (server.num_open_replies() > 64) fail("replies stay open");
  }
  return 0;
}
