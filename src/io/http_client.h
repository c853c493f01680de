// A small HTTP/1.1 client for servers of models: one request at a time over a connection that is kept, http or https.
// It follows no redirects and reads no proxy settings.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sinter::io {

struct HttpAnswer {
  int status = 0;
  std::string body;
  double retry_after_seconds = 0;  // what the server asks for with 429 and 503; 0 = nothing
};

struct HttpClientOptions {
  double timeout_seconds = 600;  // without a byte from the server
  size_t max_bytes = size_t{1} << 30;
  std::vector<std::pair<std::string, std::string>> headers;  // of every request
};
HttpClientOptions with_api_key(const std::string& key);  // "Authorization: Bearer KEY"; none where the key is empty

class HttpClient {
 public:
  // `url`: "http://HOST[:PORT][/PATH]" or https. Throws base::Error for anything else; connects at the first request.
  HttpClient(const std::string& url, const HttpClientOptions& options = {});
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;

  // `path` stands behind the URL's. Any status is an answer; throws base::Error naming the URL where there is none.
  // A kept connection that the server has closed meanwhile is opened again.
  HttpAnswer get(const std::string& path);
  // `on_data` gets the body of a 200 piece by piece as it comes; the answer's body is empty then.
  using OnData = std::function<void(std::string_view piece)>;
  HttpAnswer post_json(const std::string& path, const std::string& body, const OnData& on_data = {});
  // Waits and asks again on 408, 429, 500, 502, 503 and 504 and where the connection fails, `tries` times in all;
  // throws base::Error with the status and the beginning of the body where the last answer is no 2xx.
  std::string post_until_answered(const std::string& path, const std::string& body, int tries = 6);

  const std::string& url() const;

 private:
  struct Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace sinter::io
