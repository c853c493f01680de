// HTTP as handlers see it: a whole request, and a reply that is sent at once or as a stream. No sockets here.
#pragma once
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sinter::server {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, path, query, body;
  std::string remote;  // the client's address
  Headers headers;     // names in lower case
  // The first header of that name (lower case), "" where there is none.
  std::string_view header(std::string_view name) const;
};

// "OK" for 200 and so on.
std::string_view status_text(int status);

// What a handler answers. Any thread may call it. A reply is either send() alone, or begin_stream(), any number of
// write() and finish(). Calls after the end, and after the client has gone, do nothing.
class Reply {
 public:
  void send(int status, std::string content_type, std::string body, Headers headers = {});
  void begin_stream(std::string content_type, Headers headers = {});
  // False when the client has gone or reads too slowly to be served (more than max_pending_bytes wait for it).
  bool write(std::string_view text);
  void finish();
  // Called at most once, when the client goes before the end; at once when it has gone already. It must not block.
  void on_close(std::function<void()> action);

  bool is_closed() const;
  bool is_finished() const;

  // ---- the connection's side ----
  struct Head {
    int status = 0;
    std::string content_type;
    Headers headers;
    bool is_stream = false;
  };
  struct Batch {
    bool has_head = false, is_finished = false;
    Head head;  // where has_head
    std::string body;
  };
  // What has been answered since the last call.
  Batch take();
  // Called after each answer, from the answering thread.
  void set_wake(std::function<void()> wake);
  void close();

  size_t max_pending_bytes = size_t{8} << 20;

 private:
  void wake_up();
  mutable std::mutex mutex_;
  Batch pending_;
  bool has_begun_ = false, is_finished_ = false, is_closed_ = false;
  std::function<void()> wake_, on_close_;
};

}  // namespace sinter::server
