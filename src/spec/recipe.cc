#include "spec/recipe.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "spec/hf_config.h"
#include "spec/recipe_check.h"
#include "spec/recipe_keys.h"
#include "spec/recipe_text.h"
#include "spec/toml_text.h"

namespace sinter::spec {
namespace {

using base::fail;

const ChoiceNames<base::DType> kPrecisions{{"f32", base::DType::f32},   {"fp32", base::DType::f32},
                                           {"bf16", base::DType::bf16}, {"f16", base::DType::f16},
                                           {"fp16", base::DType::f16},  {"fp8", base::DType::f8e4m3}};
const ChoiceNames<base::DType> kShortFormats{
    {"f32", base::DType::f32}, {"fp32", base::DType::f32}, {"bf16", base::DType::bf16}};
// Of optimizer states: u8 is codes of 8 bits with a scale for every 256.
const ChoiceNames<base::DType> kStateFormats{
    {"f32", base::DType::f32}, {"fp32", base::DType::f32}, {"bf16", base::DType::bf16}, {"8bit", base::DType::u8}};
const ChoiceNames<Recompute> kRecomputes{
    {"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}};
const ChoiceNames<PipelineKind> kPipelines{{"1f1b", PipelineKind::one_f_one_b},
                                           {"gpipe", PipelineKind::gpipe},
                                           {"interleaved", PipelineKind::interleaved},
                                           {"zb-h1", PipelineKind::zero_bubble}};
const ChoiceNames<ContextKind> kContexts{{"ring", ContextKind::ring}, {"gather", ContextKind::gather}};
const ChoiceNames<LayoutChoice> kLayouts{
    {"given", LayoutChoice::given}, {"auto", LayoutChoice::automatic}, {"tune", LayoutChoice::tune}};
const ChoiceNames<CudaGraphs> kCudaGraphs{
    {"auto", CudaGraphs::automatic}, {"on", CudaGraphs::on}, {"off", CudaGraphs::off}};
const ChoiceNames<Packing> kPackings{{"documents", Packing::documents}, {"stream", Packing::stream}};
const ChoiceNames<OptimizerKind> kOptimizers{{"sgd", OptimizerKind::sgd},
                                             {"adam", OptimizerKind::adam},
                                             {"adamw", OptimizerKind::adamw},
                                             {"muon", OptimizerKind::muon}};
const ChoiceNames<ScheduleKind> kSchedules{{"constant", ScheduleKind::constant},
                                           {"cosine", ScheduleKind::cosine},
                                           {"linear", ScheduleKind::linear},
                                           {"wsd", ScheduleKind::wsd}};
const ChoiceNames<ExportFormat> kExports{{"precision", ExportFormat::precision}, {"f32", ExportFormat::f32}};
// An update with numbers that are not finite would destroy the weights, so one of these it must be.
const ChoiceNames<GuardAction> kNanGuards{{"skip", GuardAction::skip}, {"stop", GuardAction::stop}};
const ChoiceNames<GuardAction> kGuards{
    {"off", GuardAction::off}, {"skip", GuardAction::skip}, {"stop", GuardAction::stop}};

// What a number may be.
constexpr NumberRange kPositive{1, 1e15};
constexpr NumberRange kShare{0, 1};
constexpr NumberRange kRanks{0, 1 << 24};
constexpr NumberRange kWidth{1, 1 << 20};  // of an axis of ranks
constexpr NumberRange kKept{0,
                            0.999999};  // of a moving average: with 1 nothing new comes in, and corrections divide by 0

// One function a section: its keys in order, the range of a number, the names of a choice.
template <class Visitor>
void visit_model(Visitor& v, ModelRecipe& model) {
  v.section("model");
  v.value("path", model.path);
  v.value("random", model.random);
  v.value("family", model.family);
  v.value("vocab_size", model.vocab_size);
  v.value("hidden", model.hidden);
  v.value("layers", model.layers);
  v.value("heads", model.heads);
  v.value("kv_heads", model.kv_heads);
  v.value("head_dim", model.head_dim);
  v.value("ffn", model.ffn);
  v.value("max_positions", model.max_positions);
  v.value("tied_head", model.tied_head);
  v.value("norm_eps", model.norm_eps);
  v.value("rope_theta", model.rope_theta);
  v.value("window", model.window);
  v.value("experts", model.experts);
  v.value("experts_per_token", model.experts_per_token, kPositive);
  v.value("expert_ffn", model.expert_ffn);
  v.value("balance_loss", model.balance_loss);
  v.value("dropout", model.dropout, kShare);
  v.value("init_std", model.init_std);
  v.value("mtp_heads", model.mtp_heads);
  v.value("mtp_weight", model.mtp_weight);
}

template <class Visitor>
void visit_data(Visitor& v, DataRecipe& data) {
  v.section("data");
  v.sources("sources", data.sources);
  v.sources("validation", data.validation);
  v.value("validation_share", data.validation_share, NumberRange{0, 0.5});
  v.value("tokenizer", data.tokenizer);
  v.value("sequence_length", data.sequence_length, NumberRange{1, 1 << 24});
  v.choice("packing", data.packing, kPackings);
  v.value("shuffle", data.shuffle);
  v.value("separator", data.separator);
  v.value("text_key", data.text_key);
  v.value("cache", data.cache);
}

template <class Visitor>
void visit_train(Visitor& v, TrainRecipe& train) {
  v.section("train");
  v.value("steps", train.steps);
  v.value("tokens", train.tokens);
  v.value("batch_tokens", train.batch_tokens);
  v.value("micro_batch", train.micro_batch, NumberRange{1, 1 << 20});
  v.value("ramp_from_tokens", train.ramp_from_tokens);
  v.value("ramp_steps", train.ramp_steps, NumberRange{0, 1 << 24});
  v.value("patience", train.patience, NumberRange{0, 100000});
  v.value("seed", train.seed);
  v.choice("precision", train.precision, kPrecisions);
  v.value("loss_scale", train.loss_scale, NumberRange{1, 16777216});
  v.value("loss_scale_interval", train.loss_scale_interval, kPositive);
  v.choice("gradients", train.gradients, kShortFormats);
  v.choice("recompute", train.recompute, kRecomputes);
  v.value("device", train.device);
  v.value("deterministic", train.deterministic);
  v.choice("cuda_graphs", train.cuda_graphs, kCudaGraphs);
  v.value("threads", train.threads, NumberRange{0, 1024});
}

template <class Visitor>
void visit_optimizer(Visitor& v, OptimizerRecipe& optimizer) {
  v.section("optimizer");
  v.choice("kind", optimizer.kind, kOptimizers);
  v.value("lr", optimizer.lr);
  v.value("beta1", optimizer.beta1, kKept);
  v.value("beta2", optimizer.beta2, kKept);
  v.value("eps", optimizer.eps, NumberRange{1e-30, 1});
  v.value("weight_decay", optimizer.weight_decay);
  v.value("momentum", optimizer.momentum, kKept);
  v.value("clip", optimizer.clip);
  v.value("muon_lr", optimizer.muon_lr);
  v.value("muon_momentum", optimizer.muon_momentum, kKept);
  v.value("muon_iterations", optimizer.muon_iterations, NumberRange{1, 20});
  v.choice("states", optimizer.states, kStateFormats);
}

template <class Visitor>
void visit_schedule(Visitor& v, ScheduleRecipe& schedule) {
  v.section("schedule");
  v.choice("kind", schedule.kind, kSchedules);
  v.value("warmup", schedule.warmup);
  v.value("final_ratio", schedule.final_ratio, kShare);
  v.value("decay_share", schedule.decay_share, kShare);
}

template <class Visitor>
void visit_guard(Visitor& v, GuardRecipe& guard) {
  v.section("guard");
  v.choice("on_nan", guard.on_nan, kNanGuards);
  v.choice("on_outlier", guard.on_outlier, kGuards);
  v.value("max_z", guard.max_z);
  v.value("window", guard.window, NumberRange{8, 1 << 16});
  v.value("max_skips", guard.max_skips, kPositive);
}

template <class Visitor>
void visit_checkpoint(Visitor& v, CheckpointRecipe& checkpoint) {
  v.section("checkpoint");
  v.value("dir", checkpoint.dir);
  v.value("every", checkpoint.every);
  v.value("minutes", checkpoint.minutes, NumberRange{0, 1e6});
  v.value("initial", checkpoint.initial);
  v.value("background", checkpoint.background);
  v.choice("export", checkpoint.exports, kExports);
  v.value("keep", checkpoint.keep, kPositive);
  v.value("export_every", checkpoint.export_every);
  v.value("resume", checkpoint.resume);
  v.value("time_limit", checkpoint.time_limit);
  v.value("time_margin", checkpoint.time_margin);
}

template <class Visitor>
void visit_log(Visitor& v, LogRecipe& log) {
  v.section("log");
  v.value("every", log.every, kPositive);
  v.value("metrics", log.metrics);
  v.strings("sample_prompts", log.sample_prompts);
  v.value("sample_every", log.sample_every);
  v.value("sample_tokens", log.sample_tokens, kPositive);
  v.value("eval_every", log.eval_every);
  v.value("eval_batches", log.eval_batches, kPositive);
}

template <class Visitor>
void visit_eval(Visitor& v, EvalRecipe& eval) {
  v.section("eval");
  v.strings("tasks", eval.tasks);
  v.value("every", eval.every);
  v.value("limit", eval.limit);
  v.value("few_shot", eval.few_shot, NumberRange{-1, 1024});
  v.value("chat", eval.chat);
  v.value("allow_code", eval.allow_code);
  v.value("data", eval.data);
}

template <class Visitor>
void visit_parallel(Visitor& v, ParallelSpec& parallel) {
  v.section("parallel");
  v.choice("layout", parallel.choice, kLayouts);
  int64_t dp = parallel.dp();
  v.value("dp", dp, kRanks);
  v.value("replica", parallel.replica, NumberRange{1, 1 << 20});
  SINTER_CHECK(dp % parallel.replica == 0, "parallel.dp {} is not a multiple of parallel.replica {}", dp,
               parallel.replica);
  parallel.shard = dp / parallel.replica;
  int64_t zero = parallel.zero;
  v.value("zero", zero, NumberRange{0, 3});
  parallel.zero = static_cast<int>(zero);
  v.value("tp", parallel.tp, kWidth);
  v.value("sequence_parallel", parallel.sequence_parallel);
  v.value("pp", parallel.pp, kWidth);
  v.value("interleave", parallel.interleave, kWidth);
  v.choice("schedule", parallel.schedule, kPipelines);
  v.value("cp", parallel.cp, kWidth);
  v.choice("context", parallel.context, kContexts);
  v.value("ep", parallel.ep, kWidth);
  v.value("expert_capacity", parallel.expert_capacity, NumberRange{1, 1024});
  v.value("offload_optimizer", parallel.offload.optimizer);
  v.value("offload_gradients", parallel.offload.gradients);
  v.value("offload_parameters", parallel.offload.parameters);
  v.value("offload_activations", parallel.offload.activations);
  v.value("offload_folder", parallel.offload.folder);
  v.value("device_memory_gib", parallel.device_memory_gib, NumberRange{0, 1 << 20});
  v.value("bucket_mib", parallel.bucket_mib, NumberRange{0.001, 1 << 20});
  v.value("timeout", parallel.timeout, NumberRange{0, 1e6});
}

// Walks every key of a recipe in order. The reader, the writer and the list of names are three visitors of this one
// function, so none of them can miss a key.
template <class Visitor>
void visit_recipe(Visitor& v, Recipe& r) {
  visit_model(v, r.model);
  visit_data(v, r.data);
  visit_train(v, r.train);
  visit_optimizer(v, r.optimizer);
  visit_schedule(v, r.schedule);
  visit_guard(v, r.guard);
  visit_checkpoint(v, r.checkpoint);
  visit_log(v, r.log);
  visit_eval(v, r.eval);
  visit_parallel(v, r.parallel);
}

// Fills a recipe from a TOML table; finish() refuses what no key asked for.
class Reader {
 public:
  Reader(const toml::table& root, std::string origin) : root_(root), origin_(std::move(origin)) {}

  void section(const char* name) {
    check_keys();
    section_ = name;
    section_names_.push_back(name);
    keys_.clear();
    const toml::node* node = root_.get(name);
    SINTER_CHECK(!node || node->is_table(), "{}: '{}' must be a section, as in [{}]", origin_, name, name);
    table_ = node ? node->as_table() : nullptr;
  }
  void value(const char* key, std::string& out) {
    if (const toml::node* node = take(key)) {
      SINTER_CHECK(node->is_string(), "{} is {}; expected a string", where(key), found(*node));
      out = **node->as_string();
    }
  }
  void value(const char* key, bool& out) {
    if (const toml::node* node = take(key)) {
      SINTER_CHECK(node->is_boolean(), "{} is {}; expected true or false", where(key), found(*node));
      out = **node->as_boolean();
    }
  }
  void value(const char* key, double& out, NumberRange range = {}) {
    if (const toml::node* node = take(key)) out = number(where(key), *node, range);
  }
  void value(const char* key, int64_t& out, NumberRange range = {}) {
    if (const toml::node* node = take(key)) {
      double number = this->number(where(key), *node, range);
      SINTER_CHECK(number == std::floor(number), "{} is {}; expected a whole number", where(key), number);
      out = static_cast<int64_t>(number);
    }
  }
  template <class E>
  void choice(const char* key, E& out, const ChoiceNames<E>& names) {
    const toml::node* node = take(key);
    if (!node) return;
    SINTER_CHECK(node->is_string(), "{} must be a string", where(key));
    const std::string text = **node->as_string();
    std::vector<std::string> known;
    for (const auto& [name, choice] : names) {
      if (text == name) {
        out = choice;
        return;
      }
      known.push_back(name);
    }
    fail("{} is '{}'; expected one of {}{}", where(key), text, fmt::join(known, ", "), base::did_you_mean(text, known));
  }
  void strings(const char* key, std::vector<std::string>& out) {
    const toml::node* node = take(key);
    if (!node) return;
    out.clear();
    if (node->is_string()) {
      out.push_back(**node->as_string());
      return;
    }
    SINTER_CHECK(node->is_array(), "{} must be a string or a list of strings", where(key));
    for (const toml::node& item : *node->as_array()) {
      SINTER_CHECK(item.is_string(), "{} must hold strings only", where(key));
      out.push_back(**item.as_string());
    }
  }
  void sources(const char* key, std::vector<SourceRecipe>& out) {
    const toml::node* node = take(key);
    if (!node) return;
    out.clear();
    if (const toml::array* list = node->as_array()) {
      for (const toml::node& item : *list) out.push_back(source(key, item));
    } else {
      out.push_back(source(key, *node));
    }
  }
  void finish() {
    check_keys();
    for (const auto& [name, node] : root_) {
      std::string text(name.str());
      SINTER_CHECK(std::find(section_names_.begin(), section_names_.end(), text) != section_names_.end(),
                   "{}: there is no section [{}]{}", origin_, text, base::did_you_mean(text, section_names_));
    }
  }

 private:
  std::string where(const char* key) const { return fmt::format("{}: {}.{}", origin_, section_, key); }
  const toml::node* take(const char* key) {
    keys_.push_back(key);
    return table_ ? table_->get(key) : nullptr;
  }
  // What is said with so many digits is no number to TOML, and comes as text.
  static bool is_digits(const toml::node& node) {
    const auto text = node.value_exact<std::string>();
    return text && !text->empty() && text->find_first_not_of("0123456789") == std::string::npos;
  }
  // A value of the wrong kind, for people.
  static std::string found(const toml::node& node) {
    if (const auto text = node.value_exact<std::string>()) return "'" + *text + "'";
    if (const auto flag = node.value_exact<bool>()) return *flag ? "true" : "false";
    if (const auto number = node.value<double>()) return fmt::format("{}", *number);
    return node.is_array() ? "a list" : node.is_table() ? "a table" : "a date or time";
  }
  double number(const std::string& place, const toml::node& node, NumberRange range) const {
    SINTER_CHECK(node.is_number(), "{} is {}; expected a number{}", place, found(node),
                 is_digits(node) ? " below 2^63" : "");
    // toml++ gives no double for a whole number that a double cannot hold.
    const auto whole = node.value_exact<int64_t>();
    const double value = whole ? static_cast<double>(*whole) : node.value<double>().value_or(std::nan(""));
    constexpr double kMostWhole = 1e15;  // doubles still tell neighbours apart there
    SINTER_CHECK(!whole || std::abs(value) <= kMostWhole, "{} is {}; expected {} to {}", place, *whole,
                 std::max(range.low, -kMostWhole), std::min(range.high, kMostWhole));
    SINTER_CHECK(value >= range.low && value <= range.high, "{} is {}; expected {} to {}", place, value, range.low,
                 range.high);
    return value;
  }
  SourceRecipe source(const char* key, const toml::node& node) const {
    SourceRecipe out;
    if (node.is_string()) {
      out.path = **node.as_string();
      return out;
    }
    SINTER_CHECK(node.is_table(), "{}: each source is a path or {{path = \"...\", weight = 1.0}}", where(key));
    const std::vector<std::string> known{"path", "weight"};
    for (const auto& [name, value] : *node.as_table()) {
      std::string text(name.str());
      if (text == "path") {
        SINTER_CHECK(value.is_string(), "{}: path must be a string", where(key));
        out.path = **value.as_string();
      } else if (text == "weight") {
        out.weight = number(where(key) + ": a source's weight", value, {1e-9, 1e9});
      } else {
        fail("{}: a source has no key '{}'{}", where(key), text, base::did_you_mean(text, known));
      }
    }
    SINTER_CHECK(!out.path.empty(), "{}: a source has no path", where(key));
    return out;
  }
  void check_keys() const {
    if (!table_) return;
    for (const auto& [name, node] : *table_) {
      std::string text(name.str());
      const std::string hint = base::did_you_mean(text, keys_);
      SINTER_CHECK(std::find(keys_.begin(), keys_.end(), text) != keys_.end(), "{}: [{}] has no key '{}'{}", origin_,
                   section_, text, hint.empty() ? other_section_hint(text) : hint);
    }
  }

  const toml::table& root_;
  std::string origin_, section_;
  const toml::table* table_ = nullptr;
  std::vector<std::string> keys_, section_names_;
};

toml::table parse_toml(std::string_view text, const std::string& origin) {
  try {
    return toml::parse(text);
  } catch (const toml::parse_error& e) {
    std::string what(e.description());  // "Error while parsing key-value pair: expected ..."
    if (constexpr std::string_view kPrefix = "Error while parsing "; what.starts_with(kPrefix))
      what.erase(0, kPrefix.size());
    fail("'{}' line {} is not TOML: {}{}", origin, e.source().begin.line, what,
         origin.ends_with(".toml") ? "" : "; expected a recipe, such as `sinter train --template small` prints");
  }
}

// "section.key=value" into the table; a value that is not TOML on its own is a bare string.
void apply_override(toml::table& root, const std::string& text) {
  size_t equals = text.find('='), dot = text.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot == 0 || dot + 1 >= equals)
    base::fail_usage("'{}' is not of the form section.key=value, such as train.steps=100{}", text,
                     other_section_hint(text.substr(0, equals)));
  const std::string section = text.substr(0, dot), key = text.substr(dot + 1, equals - dot - 1);
  const std::string value = text.substr(equals + 1);
  toml::table parsed;
  try {
    parsed = toml::parse("v = " + value);
  } catch (const toml::parse_error& e) {
    if (!value.empty() && std::string_view("[{\"'").find(value[0]) != std::string_view::npos)  // no bare word
      base::fail_usage("'{}' is not TOML: {}", text, e.description());
    parsed.insert_or_assign("v", value);
  }
  if (!root.contains(section)) root.insert(section, toml::table{});
  toml::table* table = root.get(section)->as_table();
  SINTER_CHECK(table, "override '{}': '{}' is not a section of the recipe", text, section);
  table->insert_or_assign(key, *parsed.get("v"));
}

// train.steps and train.tokens say the same thing: an override of one takes the place of the other in the file.
void drop_other_length(toml::table& root, const std::vector<std::string>& overrides) {
  auto is_given = [&](std::string_view key) {
    return std::any_of(overrides.begin(), overrides.end(), [&](const std::string& o) { return o.starts_with(key); });
  };
  toml::table* train = root["train"].as_table();
  const bool steps = is_given("train.steps="), tokens = is_given("train.tokens=");
  if (train && steps != tokens) train->erase(steps ? "tokens" : "steps");
}

Recipe read_recipe(const toml::table& root, const std::string& place) {
  Recipe recipe;
  Reader reader(root, place);
  visit_recipe(reader, recipe);
  reader.finish();
  return recipe;
}

bool is_readable(const toml::table& root, const std::string& place) {
  try {
    check_recipe(read_recipe(root, place), place);
    return true;
  } catch (const base::Error&) {
    return false;
  }
}

}  // namespace

Recipe parse_recipe(std::string_view text, const std::string& origin, const std::vector<std::string>& overrides) {
  const toml::table file = parse_toml(text, origin);
  toml::table root = file;
  for (const std::string& override_text : overrides) apply_override(root, override_text);
  drop_other_length(root, overrides);
  // What is wrong may be in either.
  const std::string place = overrides.empty() ? origin : fmt::format("{} with {}", origin, fmt::join(overrides, " "));
  Recipe recipe;
  try {
    recipe = read_recipe(root, place);
    check_recipe(recipe, place);
  } catch (const base::Error& e) {
    if (!overrides.empty() && is_readable(file, origin)) base::fail_usage("{}", e.what());  // so it is an override
    throw;
  }
  return recipe;
}

Recipe load_recipe(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_recipe(base::read_file(path), path, overrides);
}

std::vector<RecipeKey> recipe_keys() {
  Recipe defaults;
  KeyLister lister;
  visit_recipe(lister, defaults);
  return lister.keys;
}

std::string recipe_to_toml(const Recipe& recipe) {
  Recipe copy = recipe;
  RecipeWriter writer;
  visit_recipe(writer, copy);
  return writer.text();
}

}  // namespace sinter::spec
