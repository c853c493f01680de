// Numbers for /metrics, in Prometheus' text form.
#pragma once
#include <memory>
#include <string>

#include "engine/engine.h"

namespace sinter::server {

class Metrics {
 public:
  // The machine's memory bandwidth, which the model's reading is shown beside; 0: not known.
  explicit Metrics(const std::string& model_name, double memory_bytes_per_second = 0);
  ~Metrics();
  // A choice has got its first token; has ended.
  void record_first_token(const engine::Output& output);
  void record(const engine::Output& output, int64_t num_tokens, double seconds);
  // Further tokens have come, so long after the last ones.
  void record_gap(double seconds, int64_t num_tokens);
  // An HTTP reply has been sent.
  void record_reply(const std::string& route, int status, double seconds);
  // Everything, with the engine's numbers of now.
  std::string text(const engine::EngineStats& stats);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sinter::server
