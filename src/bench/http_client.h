// A plain HTTP/1.1 client for measuring servers: one request at a time on a connection that is kept, the body handed
// on as it comes. No TLS.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sinter::bench {

struct HttpReply {
  int status = 0;
  std::string body;  // empty where the caller took the pieces
  double retry_after_seconds = 0;
};

class HttpClient {
 public:
  // "http://host:port", with an optional path that goes before every route. Throws base::UsageError for other schemes.
  explicit HttpClient(const std::string& url);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  std::vector<std::pair<std::string, std::string>> headers;  // sent with every request
  double timeout_seconds = 600;                              // without a byte

  // Throws base::Error naming the address where it cannot be reached or does not speak HTTP. `on_data` gets the body
  // of a 200 piece by piece.
  HttpReply get(const std::string& path);
  HttpReply post(const std::string& path, const std::string& body,
                 const std::function<void(std::string_view piece)>& on_data = {});

 private:
  void connect();
  void disconnect();
  void send(std::string_view text);
  bool fill();  // false: the server has closed the connection
  std::string read_line();
  HttpReply ask(const std::string& method, const std::string& path, const std::string& body,
                const std::function<void(std::string_view)>& on_data);
  HttpReply read_reply(const std::function<void(std::string_view)>& on_data);
  void read_exactly(size_t count, const std::function<void(std::string_view)>& take);

  std::string host_, port_, base_;
  int socket_ = -1;
  std::string buffer_;
  size_t at_ = 0;  // in buffer_
  bool has_read_ = false;
};

}  // namespace sinter::bench
