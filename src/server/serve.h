// A model behind an HTTP server, from start to shutdown.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "server/http_server.h"
#include "server/service.h"

namespace sinter::server {

struct ServeOptions {
  ListenOptions listen;
  ServiceOptions service;
  std::string access_log;     // "": none; "-": standard error; else a file that JSON lines are added to
  double drain_seconds = 30;  // how long requests may take to end at shutdown
};

// HTTP server and service together, for the verb and for tests.
class Server {
 public:
  Server(ServedModel model, const ServeOptions& options);
  ~Server();
  std::string address() const { return http_->address(); }
  int port() const { return http_->port(); }
  Service& service() { return *service_; }
  HttpServer& http() { return *http_; }
  // Takes no more connections, waits for replies that are under way, cancels what is left. True: all ended in time.
  bool drain(double seconds);

 private:
  void log_access(const AccessRecord& record);
  struct Log;
  ServedModel model_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<HttpServer> http_;
};

// Serves until SIGINT or SIGTERM, then drains; a second signal ends at once. `on_ready` is called when it listens.
void serve(ServedModel model, const ServeOptions& options, const std::function<void(const Server&)>& on_ready);

}  // namespace sinter::server
