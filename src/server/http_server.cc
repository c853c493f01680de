#include "server/http_server.h"

#include <unistd.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/strand.hpp>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "server/http_session.h"

namespace sinter::server {
namespace {

using Tcp = asio::ip::tcp;
using Local = asio::local::stream_protocol;

asio::awaitable<void> serve_plain(PlainStream stream, std::shared_ptr<SessionContext> context, std::string remote) {
  Session<PlainStream> session(stream, *context, std::move(remote));
  co_await session.run();
  beast::error_code ignored;
  stream.socket().shutdown(asio::socket_base::shutdown_both, ignored);
}

std::string name_of(const Tcp::endpoint& endpoint) { return endpoint.address().to_string(); }
std::string name_of(const Local::endpoint&) { return "unix"; }

}  // namespace

struct HttpServer::State {
  asio::io_context io;
  std::shared_ptr<SessionContext> context = std::make_shared<SessionContext>();
  std::shared_ptr<void> tls;
  std::optional<Tcp::acceptor> tcp;
  std::optional<Local::acceptor> local;
  std::vector<std::thread> threads;
  int port = 0;
  std::string address;

  // On the acceptor's own strand, where stop_accepting() closes it.
  template <class Acceptor>
  asio::awaitable<void> accept_all(Acceptor& acceptor) {
    asio::steady_timer pause(acceptor.get_executor());
    for (;;) {
      auto [error, socket] = co_await acceptor.async_accept(asio::make_strand(io), kTuple);
      if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) co_return;
      if (error) {  // no file descriptors left, or the client went at once
        pause.expires_after(std::chrono::milliseconds(50));
        co_await pause.async_wait(kTuple);
        continue;
      }
      if (context->num_connections >= context->options.max_connections) continue;  // the socket closes here
      begin(std::move(socket));
    }
  }

  template <class Socket>
  void begin(Socket socket) {
    beast::error_code error;
    if constexpr (std::is_same_v<typename Socket::protocol_type, Tcp>) socket.set_option(Tcp::no_delay(true), error);
    const auto endpoint = socket.remote_endpoint(error);
    const std::string remote = error ? "" : name_of(endpoint);
    asio::any_io_executor executor = socket.get_executor();
    PlainStream stream(asio::generic::stream_protocol::socket(std::move(socket)));
    ++context->num_connections;
    auto ended = [context = context](std::exception_ptr) { --context->num_connections; };
    if (tls) {
      asio::co_spawn(executor, serve_tls(std::move(stream), tls.get(), context, remote), ended);
    } else {
      asio::co_spawn(executor, serve_plain(std::move(stream), context, remote), ended);
    }
  }

  void listen_tcp(const ListenOptions& options) {
    beast::error_code error;
    const std::string host = options.host == "localhost" ? "127.0.0.1" : options.host;
    const auto where = asio::ip::make_address(host, error);
    SINTER_CHECK(!error, "--host '{}' is not an address; expected one such as 127.0.0.1, 0.0.0.0 or ::1", options.host);
    const Tcp::endpoint endpoint(where, static_cast<uint16_t>(options.port));
    tcp.emplace(asio::make_strand(io));
    tcp->open(endpoint.protocol(), error);
    if (!error) tcp->set_option(asio::socket_base::reuse_address(true), error);
    if (!error) tcp->bind(endpoint, error);
    if (!error) tcp->listen(asio::socket_base::max_listen_connections, error);
    SINTER_CHECK(!error, "cannot listen on {}:{}: {}; choose another --port (0 takes a free one)", options.host,
                 options.port, error.message());
    port = tcp->local_endpoint().port();
    const std::string shown = where.is_v6() ? "[" + host + "]" : host;
    address = fmt::format("{}://{}:{}", tls ? "https" : "http", shown, port);
    asio::co_spawn(tcp->get_executor(), accept_all(*tcp), asio::detached);
  }

  void listen_unix(const ListenOptions& options) {
    SINTER_CHECK(options.unix_socket.size() < 100, "--unix-socket '{}' is longer than 99 bytes", options.unix_socket);
    beast::error_code error;
    local.emplace(asio::make_strand(io));
    local->open(Local(), error);
    ::unlink(options.unix_socket.c_str());
    if (!error) local->bind(Local::endpoint(options.unix_socket), error);
    if (!error) local->listen(asio::socket_base::max_listen_connections, error);
    SINTER_CHECK(!error, "cannot listen on '{}': {}", options.unix_socket, error.message());
    address = "unix:" + options.unix_socket;
    asio::co_spawn(local->get_executor(), accept_all(*local), asio::detached);
  }
};

HttpServer::HttpServer(const ListenOptions& options, Handler handler, OnDone on_done)
    : state_(std::make_shared<State>()) {
  State& s = *state_;
  s.context->options = options;
  s.context->handler = std::move(handler);
  s.context->on_done = std::move(on_done);
  if (!options.certificate.empty() || !options.private_key.empty()) s.tls = make_tls_context(options);
  if (options.unix_socket.empty()) {
    s.listen_tcp(options);
  } else {
    s.listen_unix(options);
  }
  for (int i = 0; i < std::max(1, options.threads); ++i) {
    s.threads.emplace_back([&s] {
      base::leave_pool();
      for (;;) {
        try {
          s.io.run();
          return;
        } catch (const std::exception& e) {  // a connection's error ends that connection only
          base::log_error("http: {}", e.what());
        }
      }
    });
  }
}

HttpServer::~HttpServer() { stop(); }

int HttpServer::port() const { return state_->port; }
std::string HttpServer::address() const { return state_->address; }
int64_t HttpServer::num_connections() const { return state_->context->num_connections; }
int64_t HttpServer::num_open_replies() const { return state_->context->num_open_replies; }

void HttpServer::post(std::function<void()> task) { asio::post(state_->io, std::move(task)); }

void HttpServer::stop_accepting() {
  state_->context->is_draining = true;
  auto close = [](auto& acceptor) {
    if (!acceptor) return;
    asio::post(acceptor->get_executor(), [&acceptor] {
      beast::error_code ignored;
      acceptor->close(ignored);
    });
  };
  close(state_->tcp);
  close(state_->local);
}

void HttpServer::stop() {
  state_->context->is_draining = true;
  state_->io.stop();
  for (std::thread& thread : state_->threads) {
    if (thread.joinable()) thread.join();
  }
  if (!state_->context->options.unix_socket.empty()) ::unlink(state_->context->options.unix_socket.c_str());
}

}  // namespace sinter::server
