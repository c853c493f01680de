// One connection, over any stream of Asio's. Internal to http_server.cc and http_tls.cc, the two files that include
// Boost.
#pragma once
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>

#include "server/http_server.h"

namespace sinter::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using PlainStream = beast::basic_stream<asio::generic::stream_protocol>;
inline constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

// What all connections share.
struct SessionContext {
  ListenOptions options;
  HttpServer::Handler handler;
  HttpServer::OnDone on_done;
  std::atomic<int64_t> num_connections{0}, num_open_replies{0};
  std::atomic<bool> is_draining{false};
};

inline std::chrono::milliseconds to_duration(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// Serves one TLS connection: handshake, requests, goodbye. In http_tls.cc; `tls` is an asio::ssl::context*.
asio::awaitable<void> serve_tls(PlainStream stream, void* tls, std::shared_ptr<SessionContext> context,
                                std::string remote);
// A context for serve_tls from the options' files. Throws base::Error naming the file.
std::shared_ptr<void> make_tls_context(const ListenOptions& options);

// ---- one connection ------------------------------------------------------------------------------------------------

template <class Stream>
class Session {
 public:
  Session(Stream& stream, SessionContext& context, std::string remote)
      : stream_(stream), context_(context), remote_(std::move(remote)) {}

  // Requests one after another until the client or the server has had enough.
  asio::awaitable<void> run() {
    bool goes_on = true;
    while (goes_on) goes_on = co_await serve_one();
  }

 private:
  using Parser = http::request_parser<http::string_body>;

  auto& lowest() { return beast::get_lowest_layer(stream_); }

  asio::awaitable<bool> serve_one() {
    Parser parser;
    parser.body_limit(static_cast<uint64_t>(context_.options.max_body_bytes));
    parser.header_limit(32 * 1024);
    lowest().expires_after(to_duration(context_.options.idle_seconds));
    auto [header_error, n] = co_await http::async_read_header(stream_, buffer_, parser, kTuple);
    started_ = std::chrono::steady_clock::now();
    if (header_error) {
      co_await refuse(parser, header_error);
      co_return false;
    }
    lowest().expires_after(to_duration(context_.options.read_seconds));
    if (beast::iequals(parser.get()[http::field::expect], "100-continue") && !parser.is_done()) {
      const std::string go_on = "HTTP/1.1 100 Continue\r\n\r\n";
      auto [error, m] = co_await asio::async_write(stream_, asio::buffer(go_on), kTuple);
      if (error) co_return false;
    }
    if (!parser.is_done()) {
      auto [body_error, m] = co_await http::async_read(stream_, buffer_, parser, kTuple);
      if (body_error) {
        co_await refuse(parser, body_error);
        co_return false;
      }
    }
    co_return co_await answer(parser.release());
  }

  // A request that cannot be read; a client that has gone or stays silent gets nothing.
  asio::awaitable<void> refuse(Parser& parser, beast::error_code error) {
    int status = 0;
    std::string message;
    if (error == http::error::body_limit) {
      status = 413;
      message = "the body is larger than " + std::to_string(context_.options.max_body_bytes) + " bytes";
    } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      status = 431;
      message = "the header is larger than 32 KiB";
    } else if (error.category() == http::make_error_code(http::error::bad_method).category() &&
               error != http::error::end_of_stream && error != http::error::partial_message) {
      status = 400;
      message = "this is not HTTP: " + error.message();
    } else {
      co_return;
    }
    record_.method = std::string(parser.get().method_string());
    record_.path = std::string(parser.get().target());
    Reply::Head head{status, "application/json", {}, false};
    const std::string body =
        R"({"error":{"message":")" + message + R"(","type":"invalid_request_error","param":null,"code":null}})";
    std::string text = head_text(head, body.size(), false) + body;
    lowest().expires_after(to_duration(5));
    co_await asio::async_write(stream_, asio::buffer(text), kTuple);
    report(status, static_cast<int64_t>(text.size()), false);
    co_await linger();
  }

  // A socket that is closed with bytes unread takes the reply back from a client that is still sending.
  asio::awaitable<void> linger() {
    beast::error_code ignored;
    lowest().socket().shutdown(asio::socket_base::shutdown_send, ignored);
    std::vector<char> dropped(64 * 1024);
    for (int64_t left = int64_t{64} << 20; left > 0;) {
      lowest().expires_after(to_duration(2));
      auto [error, n] = co_await stream_.async_read_some(asio::buffer(dropped), kTuple);
      if (error) co_return;
      left -= static_cast<int64_t>(n);
    }
  }

  asio::awaitable<bool> answer(http::request<http::string_body> message) {
    HttpRequest request = convert(message);
    record_ = {.remote = remote_, .method = request.method, .path = request.path};
    record_.request_bytes = static_cast<int64_t>(request.body.size());
    is_head_ = request.method == "HEAD";
    is_chunked_ = message.version() >= 11;
    keeps_alive_ = message.keep_alive() && !context_.is_draining;
    auto reply = std::make_shared<Reply>();
    auto executor = co_await asio::this_coro::executor;
    auto timer = std::make_shared<asio::steady_timer>(executor);
    reply->set_wake([executor, timer] { asio::post(executor, [timer] { timer->cancel(); }); });
    const OpenReply open(context_, reply);
    try {
      context_.handler(request, reply);
    } catch (const std::exception&) {
      reply->send(500, "application/json",
                  R"({"error":{"message":"internal error","type":"server_error","param":null,"code":null}})");
    }
    lowest().expires_never();
    using namespace asio::experimental::awaitable_operators;  // NOLINT
    auto ended = co_await (write_reply(*reply, *timer) || watch_client());
    const bool is_whole = ended.index() == 0 && std::get<0>(ended);
    report(status_, reply_bytes_, !is_whole);
    co_return is_whole&& keeps_alive_ && !context_.is_draining;
  }

  // Closes the reply however its connection ends, at shutdown too: whoever answers must not keep it.
  struct OpenReply {
    OpenReply(SessionContext& c, std::shared_ptr<Reply> r) : context(c), reply(std::move(r)) {
      ++context.num_open_replies;
    }
    ~OpenReply() {
      reply->close();
      --context.num_open_replies;
    }
    OpenReply(const OpenReply&) = delete;
    OpenReply& operator=(const OpenReply&) = delete;
    SessionContext& context;
    std::shared_ptr<Reply> reply;
  };

  // True when the whole reply was written.
  asio::awaitable<bool> write_reply(Reply& reply, asio::steady_timer& timer) {
    status_ = 0;
    reply_bytes_ = 0;
    bool is_stream = false, is_events = false;
    for (;;) {
      Reply::Batch batch = reply.take();
      std::string text;
      if (batch.has_head) {
        status_ = batch.head.status;
        is_stream = batch.head.is_stream;
        is_events = batch.head.content_type.starts_with("text/event-stream");
        if (is_stream && !is_chunked_) keeps_alive_ = false;
        text = head_text(batch.head, batch.body.size(), keeps_alive_);
      }
      if (!is_head_) text += is_stream && is_chunked_ ? as_chunk(batch.body) : batch.body;
      if (batch.is_finished && is_stream && is_chunked_ && !is_head_) text += "0\r\n\r\n";
      if (text.empty() && !batch.is_finished) {
        timer.expires_after(to_duration(context_.options.keep_alive_seconds));
        auto [error] = co_await timer.async_wait(kTuple);
        if (error || !is_events) continue;  // woken, or nothing that a client would skip
        text = is_chunked_ ? as_chunk(": keep-alive\n\n") : ": keep-alive\n\n";
      }
      lowest().expires_after(to_duration(context_.options.write_seconds));
      auto [error, written] = co_await asio::async_write(stream_, asio::buffer(text), kTuple);
      reply_bytes_ += static_cast<int64_t>(written);
      if (error) co_return false;
      lowest().expires_never();
      if (batch.is_finished) co_return true;
    }
  }

  // Ends when the client has closed its side.
  asio::awaitable<void> watch_client() {
    auto& socket = lowest().socket();
    asio::steady_timer pause(co_await asio::this_coro::executor);
    for (;;) {
      auto [error] = co_await socket.async_wait(asio::socket_base::wait_read, kTuple);
      if (error) co_return;
      pollfd state{socket.native_handle(), POLLRDHUP, 0};
      if (::poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR))) co_return;
      pause.expires_after(std::chrono::milliseconds(100));  // it has sent its next request already
      co_await pause.async_wait(kTuple);
    }
  }

  static std::string as_chunk(const std::string& body) {
    if (body.empty()) return {};
    char size[24];
    std::snprintf(size, sizeof size, "%zx\r\n", body.size());
    return size + body + "\r\n";
  }

  std::string head_text(const Reply::Head& head, size_t length, bool keeps_alive) const {
    std::string text = "HTTP/1.1 " + std::to_string(head.status) + " " + std::string(status_text(head.status)) + "\r\n";
    text += "Server: sinter\r\nContent-Type: " + head.content_type + "\r\n";
    if (!head.is_stream) text += "Content-Length: " + std::to_string(length) + "\r\n";
    if (head.is_stream && is_chunked_) text += "Transfer-Encoding: chunked\r\n";
    if (head.is_stream) text += "Cache-Control: no-store\r\nX-Accel-Buffering: no\r\n";
    text += keeps_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
    for (const auto& [name, value] : head.headers) text += name + ": " + value + "\r\n";
    return text + "\r\n";
  }

  HttpRequest convert(http::request<http::string_body>& message) const {
    HttpRequest request;
    request.method = std::string(message.method_string());
    std::string target(message.target());
    const size_t question = target.find('?');
    request.path = target.substr(0, question);
    if (question != std::string::npos) request.query = target.substr(question + 1);
    for (const auto& field : message) {
      std::string name(field.name_string());
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      request.headers.emplace_back(std::move(name), std::string(field.value()));
    }
    request.body = std::move(message.body());
    request.remote = remote_;
    return request;
  }

  void report(int status, int64_t bytes, bool was_cut) {
    record_.status = status;
    record_.reply_bytes = bytes;
    record_.was_cut = was_cut;
    record_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
    if (context_.on_done) context_.on_done(record_);
  }

  Stream& stream_;
  SessionContext& context_;
  std::string remote_;
  beast::flat_buffer buffer_{128 * 1024};
  AccessRecord record_;
  std::chrono::steady_clock::time_point started_;
  int status_ = 0;
  int64_t reply_bytes_ = 0;
  bool is_head_ = false, is_chunked_ = true, keeps_alive_ = true;
};

}  // namespace sinter::server
