// The HTTP/1.1 server: TCP, TLS and Unix sockets, keep-alive, streams, limits, disconnects. Boost stays behind this
// header.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/http.h"

namespace sinter::server {

struct ListenOptions {
  std::string host = "127.0.0.1";
  int port = 8000;                       // 0 = one the system chooses
  std::string unix_socket;               // listen on this path instead of host and port
  std::string certificate, private_key;  // PEM files; both given = TLS
  int threads = 2;
  int64_t max_body_bytes = int64_t{16} << 20;
  int64_t max_connections = 1024;
  double idle_seconds = 75;        // between requests of one connection
  double read_seconds = 30;        // for one request to arrive
  double write_seconds = 60;       // for one write to be taken
  double keep_alive_seconds = 15;  // a stream silent that long gets a comment line
};

// A request that has been answered or whose client has gone, for the access log.
struct AccessRecord {
  std::string remote, method, path;
  int status = 0;
  int64_t request_bytes = 0, reply_bytes = 0;
  double seconds = 0;
  bool was_cut = false;  // the client went before the end
};

class HttpServer {
 public:
  // Called on an HTTP thread; what it throws becomes a 500 without details. It must not wait for the model.
  using Handler = std::function<void(const HttpRequest&, std::shared_ptr<Reply>)>;
  using OnDone = std::function<void(const AccessRecord&)>;
  // Listens when it returns. Throws base::Error naming the address or file and the system's reason.
  HttpServer(const ListenOptions& options, Handler handler, OnDone on_done);
  ~HttpServer();

  int port() const;             // 0 for a Unix socket
  std::string address() const;  // "http://127.0.0.1:8000", "unix:/run/x.sock"
  int64_t num_connections() const;
  // Requests that have arrived and whose reply is not complete.
  int64_t num_open_replies() const;
  // Runs a task on one of the HTTP threads, soon.
  void post(std::function<void()> task);
  // No new connections; those there are end after their present reply.
  void stop_accepting();
  // Ends everything at once.
  void stop();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace sinter::server
