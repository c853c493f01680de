// The whole server over a fake model, from many threads at once: what the thread sanitizer looks at.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/source_dir.h"
#include "engine/fake_model.h"
#include "server/serve.h"

namespace sinter::server {
namespace {

class Client {
 public:
  explicit Client(const std::string& path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    path.copy(where.sun_path, sizeof where.sun_path - 1);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  }
  ~Client() { ::close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void send(const std::string& method, const std::string& path, const std::string& body = "",
            const std::string& key = "") const {
    const std::string text = method + " " + path +
                             " HTTP/1.1\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) +
                             "\r\nx-api-key: " + key + "\r\n\r\n" + body;
    EXPECT_EQ(::send(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // At least one byte, at most `most`; "" at the end.
  std::string read(size_t most) const {
    std::string text(most, '\0');
    text.resize(static_cast<size_t>(std::max<ssize_t>(0, ::recv(fd_, text.data(), most, 0))));
    return text;
  }
  // Status and body, without chunks.
  std::pair<int, std::string> reply() const {
    std::string text;
    for (std::string piece; !(piece = read(65536)).empty();) text += piece;
    if (text.size() < 12) return {0, text};
    return {std::stoi(text.substr(9, 3)), text.substr(text.find("\r\n\r\n") + 4)};
  }

 private:
  int fd_;
};

struct Served {
  Served() {
    ServedModel model{.name = "fake", .spec = &spec, .tokenizer = &tokenizer, .chat = {}};
    model.engine = &engine;
    model.loop = &loop;
    model.replace_weights = [this](const std::string& folder) {
      if (!folder.empty()) base::fail("'{}' is not there", folder);
      engine.change_weights([] {});
    };
    server = std::make_unique<Server>(std::move(model), options());
  }
  static ServeOptions options() {
    ServeOptions o;
    o.listen.unix_socket = path();
    o.listen.threads = 3;
    o.service.admin_key = "boss";
    return o;
  }
  static std::string path() { return testing::TempDir() + "/server_threads." + std::to_string(::getpid()); }
  std::pair<int, std::string> ask(const std::string& method, const std::string& where, const std::string& body = "",
                                  const std::string& key = "") {
    const Client client(path());
    client.send(method, where, body, key);
    return client.reply();
  }

  tokenizer::Tokenizer tokenizer =
      tokenizer::Tokenizer::load(base::source_dir() + "/tests/golden/tokenizer/small.model");
  spec::ModelSpec spec;
  engine::Engine engine{
      std::make_unique<engine::FakeModel>(tokenizer.vocab_size()),
      {.kv_tokens = 512, .block_size = 4, .step_tokens = 32, .max_running = 5, .tokenizer = &tokenizer}};
  engine::EngineLoop loop{engine};
  std::unique_ptr<Server> server;
};

TEST(Server, AnswersManyThreadsAlikeWhileClientsGoAndTheCacheIsDropped) {
  Served served;
  std::mutex mutex;
  std::map<int, std::string> texts;  // of each seed
  std::atomic<int> answered{0}, refused{0};
  auto work = [&](int thread) {
    for (int i = 0; i < 30; ++i) {
      const int seed = (thread + i) % 4, kind = (thread * 7 + i) % 10;
      const std::string body = R"({"prompt":"Once upon a time","max_tokens":20,"ignore_eos":true,"seed":)" +
                               std::to_string(seed) + (kind == 1 ? R"(,"stream":true})" : "}");
      if (kind == 0) served.engine.weights_changed();
      if (kind == 5) {
        const int reloaded = served.ask("POST", "/reload_weights", i % 2 ? "{}" : R"({"folder":"x"})", "boss").first;
        EXPECT_TRUE(reloaded == (i % 2 ? 200 : 400) || reloaded == 409) << reloaded;
      }
      if (kind == 1) {  // goes in the middle of a stream, or before it begins
        const Client client(Served::path());
        client.send("POST", "/v1/completions", body);
        if (i % 2) client.read(200);
        continue;
      }
      const int other = kind == 2   ? served.ask("GET", i % 2 ? "/metrics" : "/stats").first
                        : kind == 3 ? served.ask("POST", "/tokenize", R"({"prompt":"Once upon"})").first
                        : kind == 4 ? served.ask("POST", "/v1/completions", R"({"prompt":3})").first - 200
                                    : 200;
      EXPECT_EQ(other, 200) << kind;
      const auto [status, text] = served.ask("POST", "/v1/completions", body);
      ASSERT_TRUE(status == 200 || status == 429) << status << text;
      if (status == 429) {
        ++refused;
        continue;
      }
      ++answered;
      const std::string said = nlohmann::json::parse(text)["choices"][0]["text"];
      const std::lock_guard lock(mutex);
      EXPECT_EQ(texts.try_emplace(seed, said).first->second, said);
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 6; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(texts.size(), 4u);
  EXPECT_GT(answered, 100);
  const int64_t before = served.engine.stats().submitted;
  std::thread last([&] {
    const auto [status, text] = served.ask("POST", "/v1/completions", R"({"prompt":"x","max_tokens":50})");
    EXPECT_EQ(status, 200) << text;  // the drain lets it end
  });
  while (served.engine.stats().submitted == before) std::this_thread::yield();
  EXPECT_TRUE(served.server->drain(30));
  last.join();
  EXPECT_EQ(served.engine.stats().kv_blocks_used, 0);
  EXPECT_EQ(served.server->http().num_open_replies(), 0);
}

TEST(Server, EndsWithinTheDrainsTimeWhateverRuns) {
  Served served;
  std::vector<std::thread> threads;
  std::atomic<int> ended{0};
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&, i] {
      const auto [status, text] = served.ask("POST", "/v1/completions",
                                             R"({"prompt":"x","max_tokens":400,"ignore_eos":true,"n":1,"stream":)" +
                                                 std::string(i % 2 ? "true}" : "false}"));
      EXPECT_TRUE(status == 200 || status == 503) << status << text;
      ++ended;
    });
  }
  while (served.engine.stats().submitted < 6) std::this_thread::yield();
  served.server->drain(0.05);
  served.server.reset();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ended, 6);
}

}  // namespace
}  // namespace sinter::server
