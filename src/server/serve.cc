#include "server/serve.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"

namespace sinter::server {
namespace {

std::atomic<int> signals_received{0};

void on_signal(int) {
  // The second one does not wait for replies.
  if (++signals_received > 1) ::_exit(130);
}

// For the time of serving; what was there before comes back.
class SignalGuard {
 public:
  SignalGuard() {
    signals_received = 0;
    struct sigaction action {};
    action.sa_handler = on_signal;
    ::sigaction(SIGINT, &action, &before_int_);
    ::sigaction(SIGTERM, &action, &before_term_);
    action.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &action, &before_pipe_);
  }
  ~SignalGuard() {
    ::sigaction(SIGINT, &before_int_, nullptr);
    ::sigaction(SIGTERM, &before_term_, nullptr);
    ::sigaction(SIGPIPE, &before_pipe_, nullptr);
  }

 private:
  struct sigaction before_int_ {
  }, before_term_{}, before_pipe_{};
};

}  // namespace

// Lines of JSON. A full disk, a closed pipe and one that nobody reads lose lines, nothing else.
struct Server::Log {
  explicit Log(const std::string& path) {
    if (path.empty()) return;
    if (path == "-") {
      file = 2;
      return;
    }
    file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    SINTER_CHECK(file >= 0, "cannot open the access log '{}': {}", path, std::strerror(errno));
  }
  ~Log() {
    if (file > 2) ::close(file);
  }
  void write(const std::string& line) {
    const std::lock_guard lock(mutex);  // nobody else fills the pipe in between
    pollfd state{file, POLLOUT, 0};
    if (file >= 0 && ::poll(&state, 1, 0) > 0) (void)!::write(file, line.data(), line.size());
  }
  int file = -1;
  std::mutex mutex;
};

Server::Server(ServedModel model, const ServeOptions& options)
    : model_(std::move(model)), log_(std::make_unique<Log>(options.access_log)) {
  // The service needs the server's threads, and the server the service: requests find it by the pointer.
  auto handler = [this](const HttpRequest& request, std::shared_ptr<Reply> reply) {
    if (service_) {
      service_->handle(request, std::move(reply));
    } else {
      reply->send(503, "application/json",
                  R"({"error":{"message":"starting","type":"server_error","param":null,"code":null}})");
    }
  };
  auto post = [this](std::function<void()> task) { http_->post(std::move(task)); };
  service_ = std::make_unique<Service>(model_, options.service, post);
  http_ =
      std::make_unique<HttpServer>(options.listen, handler, [this](const AccessRecord& record) { log_access(record); });
}

Server::~Server() {
  if (model_.loop) model_.loop->stop();  // nothing more is posted
  service_->stop();
  http_->stop();
}

void Server::log_access(const AccessRecord& record) {
  service_->metrics().record_reply(service_->route_name(record.path), record.status, record.seconds);
  if (log_->file < 0) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Json line{{"time", static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) / 1000},
            {"remote", record.remote},
            {"method", record.method.substr(0, 20)},
            {"path", record.path.substr(0, 200)},
            {"status", record.status},
            {"request_bytes", record.request_bytes},
            {"reply_bytes", record.reply_bytes},
            {"seconds", record.seconds}};
  if (record.was_cut) line["client_left"] = true;
  log_->write(dump_json(line) + "\n");
}

bool Server::drain(double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(std::max(seconds, 2.0));
  service_->set_draining();
  http_->stop_accepting();
  const bool is_whole = model_.loop->drain(seconds);
  // The last replies are still being written.
  while (http_->num_open_replies() > 0 && std::chrono::steady_clock::now() < until)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return is_whole && http_->num_open_replies() == 0;
}

void serve(ServedModel model, const ServeOptions& options, const std::function<void(const Server&)>& on_ready) {
  const SignalGuard guard;
  engine::EngineLoop* loop = model.loop;
  Server server(std::move(model), options);
  on_ready(server);
  while (signals_received == 0 && loop->error().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(50));
  if (!loop->error().empty()) base::fail("the engine has stopped: {}", loop->error());
  base::log_info("shutting down: {} requests under way end within {} s; a second signal ends them now",
                 server.http().num_open_replies(), options.drain_seconds);
  if (!server.drain(options.drain_seconds)) base::log_warning("not all requests ended in time; the rest was cancelled");
}

}  // namespace sinter::server
