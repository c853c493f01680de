#include "cli/served_model.h"

#include <charconv>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "cli/command.h"
#include "core/kv_format.h"
#include "models/replace_weights.h"
#include "tokenizer/chat_template.h"

namespace sinter::cli {
namespace {

int64_t layer_number(const std::string& text) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0)
    base::fail_usage("--kv-plain-layers: '{}' is no layer; expected whole numbers as in 0,31", text);
  return number;
}

}  // namespace

struct OpenServedModel::Parts {
  explicit Parts(ServedModelFlags f)
      : flags(std::move(f)),
        tokenizer(load_tokenizer(flags.generation, flags.model)),
        model(open_for_generation(flags.generation, flags.model)) {
    flags.engine.tokenizer = &tokenizer;
    flags.engine.kv_format = core::parse_kv_format(flags.generation.kv_cache);
    flags.engine.vocab_limit = tokenizer.vocab_size();
    flags.engine.keeps_choices = true;
    for (const std::string& layer : flags.kv_plain_layers) flags.engine.kv_plain_layers.push_back(layer_number(layer));
    if (flags.name.empty()) flags.name = std::filesystem::weakly_canonical(flags.model).filename().string();
    if (!flags.chat_template.empty()) {
      chat.emplace(base::read_file(flags.chat_template), flags.chat_template);
    } else if (tokenizer::ChatTemplate::exists(flags.model)) {
      chat = tokenizer::ChatTemplate::load(flags.model);
    }
    engine.emplace(*model.transformer, flags.engine);
    loop.emplace(*engine, engine::LoopOptions{.stall_seconds = flags.stall_seconds});
  }

  // Any thread. On the CPU requests are answered while the weights are read; a GPU's stream is the steps'.
  void replace_weights(const std::string& folder) {
    const std::string from = newest_model(folder.empty() ? flags.model : folder);
    models::check_model_folder(from);
    const models::OpenOptions options = open_options(flags.generation);
    std::optional<models::OpenModel> fresh;
    if (options.device.kind == core::DeviceKind::cpu) fresh.emplace(models::open_model(from, options));
    engine->change_weights([&] {
      if (!fresh) fresh.emplace(models::open_model(from, options));
      models::replace_weights(model, *fresh, from);
    });
  }

  ServedModelFlags flags;
  tokenizer::Tokenizer tokenizer;
  models::OpenModel model;
  std::optional<tokenizer::ChatTemplate> chat;
  std::optional<engine::Engine> engine;
  std::optional<engine::EngineLoop> loop;
};

OpenServedModel::OpenServedModel(ServedModelFlags flags) {
  flags.model = newest_model(flags.model);
  parts_ = std::make_unique<Parts>(std::move(flags));
}
OpenServedModel::~OpenServedModel() = default;

server::ServedModel OpenServedModel::served() const {
  return {.name = parts_->flags.name,
          .spec = &parts_->model.spec,
          .tokenizer = &parts_->tokenizer,
          .chat = parts_->chat,
          .engine = &*parts_->engine,
          .loop = &*parts_->loop,
          .replace_weights = [parts = parts_.get()](const std::string& folder) { parts->replace_weights(folder); }};
}
engine::Engine& OpenServedModel::engine() const { return *parts_->engine; }
engine::EngineLoop& OpenServedModel::loop() const { return *parts_->loop; }
const std::string& OpenServedModel::name() const { return parts_->flags.name; }

void add_served_model_options(Command verb, ServedModelFlags& flags) {
  verb.option("--name", &flags.name, "what clients call the model; the folder's name by default");
  verb.option("--chat-template", &flags.chat_template, "Jinja file instead of the model's own template")
      .existing_file();
  verb.option("--device", &flags.generation.device, "cpu, cuda or cuda:N").shows_default();
  verb.option("--precision", &flags.generation.precision, "fp32, bf16 or fp16").shows_default();
  add_model_flags(verb, flags.generation);
  verb.option("--tokenizer", &flags.generation.tokenizer, "tokenizer file or folder, if not the model's");
  verb.option("--step-tokens", &flags.engine.step_tokens, "most tokens of one step")
      .in_range(1, 1000000)
      .shows_default();
  verb.option("--cache-tokens", &flags.engine.kv_tokens, "room in the cache; 0 chooses by memory")
      .at_least(0)
      .shows_default();
  add_kv_cache_flag(verb, flags.generation.kv_cache);
  verb.option("--kv-plain-layers", &flags.kv_plain_layers,
              "with --kv-cache: layers whose keys and values keep the precision, e.g. 0,31")
      .delimiter(',');
  verb.option("--block-size", &flags.engine.block_size, "tokens of a cache block").in_range(1, 1024).shows_default();
  verb.option("--threads", &flags.generation.threads, "CPU threads for the model (or SINTER_THREADS); default: all")
      .in_range(1, 1024);
}

}  // namespace sinter::cli
