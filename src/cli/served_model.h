// A model with everything that answers requests, as `serve` and `batch` need it: flags, and the parts opened from them.
#pragma once
#include <memory>
#include <string>

#include "cli/generation_flags.h"
#include "engine/engine_loop.h"
#include "server/service.h"

namespace sinter::cli {

class Command;

struct ServedModelFlags {
  std::string model, name, chat_template;
  GenerationFlags generation;
  engine::EngineOptions engine;
  std::vector<std::string> kv_plain_layers;  // numbers
  double stall_seconds = 300;
};

// All but the model itself and what differs between the verbs.
void add_served_model_options(Command verb, ServedModelFlags& flags);

// Owns model, tokenizer, engine and loop. Stays where it is: parts point at each other.
class OpenServedModel {
 public:
  explicit OpenServedModel(ServedModelFlags flags);
  ~OpenServedModel();
  OpenServedModel(const OpenServedModel&) = delete;
  OpenServedModel& operator=(const OpenServedModel&) = delete;

  // References into this object.
  server::ServedModel served() const;
  engine::Engine& engine() const;
  engine::EngineLoop& loop() const;
  const std::string& name() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace sinter::cli
