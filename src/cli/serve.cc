#include "server/serve.h"

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/served_model.h"
#include "cli/verbs.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::string api_key_file, admin_key_file;
  ServedModelFlags model;
  server::ServeOptions serve;
  int64_t max_body_mib = 16;
  double memory_gb_per_s = 0;
};

// Keys, one in a line; lines that begin with '#' are comments.
std::vector<std::string> read_keys(const std::string& path) {
  std::vector<std::string> keys;
  std::string text = base::read_file(path), line;
  for (char c : text + "\n") {
    if (c != '\n' && c != '\r') {
      line += c;
      continue;
    }
    if (!line.empty() && line[0] != '#') keys.push_back(line);
    line.clear();
  }
  SINTER_CHECK(!keys.empty(), "'{}' holds no keys; expected one in a line", path);
  return keys;
}

void read_all_keys(const Flags& flags, server::ServiceOptions& service) {
  if (!flags.api_key_file.empty()) service.api_keys = read_keys(flags.api_key_file);
  if (const char* key = std::getenv("SINTER_API_KEY"); key && *key) service.api_keys.emplace_back(key);
  if (!flags.admin_key_file.empty()) service.admin_key = read_keys(flags.admin_key_file)[0];
  if (const char* key = std::getenv("SINTER_ADMIN_KEY"); key && *key) service.admin_key = key;
}

bool is_loopback(const server::ListenOptions& listen) {
  return !listen.unix_socket.empty() || listen.host == "127.0.0.1" || listen.host == "localhost" ||
         listen.host == "::1";
}

void run_serve(Flags flags) {
  read_all_keys(flags, flags.serve.service);
  flags.serve.service.memory_bytes_per_second = 1e9 * flags.memory_gb_per_s;
  flags.serve.listen.max_body_bytes = flags.max_body_mib << 20;
  flags.serve.service.is_loopback = is_loopback(flags.serve.listen) && flags.serve.listen.unix_socket.empty();
  if (!is_loopback(flags.serve.listen) && flags.serve.service.api_keys.empty())
    base::log_warning(
        "--host {} can be reached from other machines, and no API key is set: anyone there may use the model",
        flags.serve.listen.host);
  const OpenServedModel open(flags.model);
  const engine::EngineStats stats = open.engine().stats();
  server::ServedModel served = open.served();
  const bool has_chat = served.chat.has_value();
  server::serve(std::move(served), flags.serve, [&](const server::Server& server) {
    base::log_info("{} ready at {} (cache for {} tokens, {}; {}); Ctrl-C ends it", open.name(), server.address(),
                   base::format_grouped(stats.kv_blocks * flags.model.engine.block_size),
                   base::format_bytes(static_cast<double>(stats.kv_bytes)),
                   has_chat ? "chat and completions" : "completions only: no chat template");
    std::printf("%s\n", server.address().c_str());  // for scripts that chose --port 0
    std::fflush(stdout);
  });
}

void add_listen_options(Command verb, Flags& flags) {
  auto& listen = flags.serve.listen;
  verb.option("--host", &listen.host, "address to listen on; 0.0.0.0 for all").shows_default();
  verb.option("--port", &listen.port, "port; 0 takes a free one").in_range(0, 65535).shows_default();
  verb.option("--unix-socket", &listen.unix_socket, "listen on this path instead of a port");
  verb.option("--tls-certificate", &listen.certificate, "PEM file of the certificate chain").existing_file();
  verb.option("--tls-key", &listen.private_key, "PEM file of its private key").existing_file();
  verb.option("--http-threads", &listen.threads, "threads for HTTP, JSON and text").in_range(1, 64).shows_default();
  verb.option("--max-body", &flags.max_body_mib, "largest request in MiB").in_range(1, 1024).shows_default();
  verb.option("--max-connections", &listen.max_connections, "connections at once").in_range(1, 1000000).shows_default();
  auto& service = flags.serve.service;
  verb.option("--api-key-file", &flags.api_key_file, "keys that clients must send, one in a line (or SINTER_API_KEY)")
      .existing_file();
  verb.option("--admin-key-file", &flags.admin_key_file, "key for admin routes (or SINTER_ADMIN_KEY)").existing_file();
  verb.option("--cors-origin", &service.cors_origin, "let pages of this origin ask; '*' for all");
  verb.option("--access-log", &flags.serve.access_log,
              "add a JSON line per request to this file; '-' is standard error");
  verb.option("--memory-bandwidth", &flags.memory_gb_per_s,
              "GB/s that this machine reads (`sinter bench ceilings`): /metrics shows the share that steps reach")
      .positive();
  verb.option("--request-seconds", &service.limits.max_seconds, "longest time for one request")
      .positive()
      .shows_default();
  verb.option("--drain-seconds", &flags.serve.drain_seconds, "time for requests to end at shutdown")
      .at_least(0)
      .shows_default();
}

void add_engine_options(Command verb, ServedModelFlags& flags) {
  auto& engine = flags.engine;
  verb.option("--max-running", &engine.max_running, "sequences that are generated at once")
      .in_range(1, 4096)
      .shows_default();
  verb.option("--max-waiting", &engine.max_waiting, "sequences in the queue; more get 429")
      .in_range(1, 1000000)
      .shows_default();
  verb.option("--stall-seconds", &flags.stall_seconds, "a step longer than this ends the process; 0 never")
      .at_least(0)
      .shows_default();
}

}  // namespace

void add_serve(Command app) {
  auto flags = std::make_shared<Flags>();
  Command verb = app.add_verb("serve", "serve a model over HTTP: the APIs of OpenAI and Anthropic, and a page");
  verb.option("MODEL", &flags->model.model, "model folder, or a training run's for its newest").required();
  add_served_model_options(verb, flags->model);
  add_listen_options(verb, *flags);
  add_engine_options(verb, flags->model);
  verb.footer(
      "Examples:\n"
      "  sinter serve models/stories15M                      http://127.0.0.1:8000, with a page in the browser\n"
      "  sinter serve MODEL --port 0 --access-log -          a free port, a line per request\n"
      "  SINTER_API_KEY=secret sinter serve MODEL --host 0.0.0.0 --tls-certificate cert.pem --tls-key key.pem\n"
      "  curl localhost:8000/v1/completions -d '{\"prompt\": \"Once upon\", \"max_tokens\": 40}'\n"
      "Ctrl-C or SIGTERM: no new requests, those under way end, then the program does. docs/serving.md has more.");
  verb.on_run([flags] { run_serve(*flags); });
}

}  // namespace sinter::cli
