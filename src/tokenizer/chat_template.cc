#include "tokenizer/chat_template.h"

#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "io/gguf.h"
#include "tokenizer/gguf.h"

namespace sinter::tokenizer {
namespace {

using base::fail;
using jinja::Kind;
using jinja::Value;
namespace fs = std::filesystem;

constexpr const char* kJinjaFile = "chat_template.jinja";
constexpr const char* kJsonFile = "chat_template.json";
constexpr const char* kConfigFile = "tokenizer_config.json";

std::string join(const std::string& folder, std::string_view name) { return (fs::path(folder) / name).string(); }

// Templates may change lists and dicts; the caller's stay as they are.
Value clone(const Value& value) {
  if (value.is(Kind::list)) {
    std::vector<Value> items;
    for (const Value& item : value.list()->items) items.push_back(clone(item));
    return value.list()->is_tuple ? jinja::make_tuple(std::move(items)) : jinja::make_list(std::move(items));
  }
  if (!value.is(Kind::dict)) return value;
  auto copy = jinja::make_dict();
  for (const auto& [key, item] : value.dict()->items()) copy->set(key, clone(item));
  copy->nesting = value.dict()->nesting;
  return copy;
}

// "bos_token": "<s>" or {"content": "<s>", ...}; later files do not replace what earlier ones said.
void read_special_tokens(const nlohmann::json& config, std::map<std::string, std::string>& tokens) {
  if (!config.is_object()) return;
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    auto found = config.find(key);
    if (found == config.end()) continue;
    if (found->is_string()) {
      tokens.emplace(key, found->get<std::string>());
    } else if (found->is_object() && found->contains("content") && (*found)["content"].is_string()) {
      tokens.emplace(key, (*found)["content"].get<std::string>());
    }
  }
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, std::string name, std::map<std::string, std::string> special_tokens)
    : special_tokens_(std::move(special_tokens)) {
  add("default", source, std::move(name));
}

void ChatTemplate::add(const std::string& name, std::string_view source, std::string title) {
  auto body = std::make_shared<const jinja::Statements>(jinja::parse_template(source, title));
  templates_[name] = {std::string(source), std::move(title), std::move(body)};
}

bool ChatTemplate::exists(const std::string& folder) {
  if (io::is_gguf(folder)) return !chat_templates_of(io::GgufFile(folder)).empty();
  if (fs::exists(join(folder, kJinjaFile)) || fs::exists(join(folder, kJsonFile))) return true;
  if (!fs::exists(join(folder, kConfigFile))) return false;
  nlohmann::json config = base::load_json(join(folder, kConfigFile));
  return config.is_object() && config.contains("chat_template") && !config["chat_template"].is_null();
}

ChatTemplate ChatTemplate::load(const std::string& folder) {
  ChatTemplate chat;
  if (io::is_gguf(folder)) {
    const io::GgufFile file(folder);
    chat.special_tokens_ = special_tokens_of(file);
    for (const auto& [name, source] : chat_templates_of(file))
      chat.add(name, source, fmt::format("{} ({})", folder, name));
    SINTER_CHECK(!chat.templates_.empty(), "'{}' has no key 'tokenizer.chat_template'; it may be a base model", folder);
    return chat;
  }
  nlohmann::json config;
  std::string config_path = join(folder, kConfigFile);
  if (fs::exists(config_path)) {
    config = base::load_json(config_path);
    read_special_tokens(config, chat.special_tokens_);
  }
  if (std::string map_path = join(folder, "special_tokens_map.json"); fs::exists(map_path)) {
    read_special_tokens(base::load_json(map_path), chat.special_tokens_);
  }
  if (std::string path = join(folder, kJinjaFile); fs::exists(path)) {
    chat.add("default", base::read_file(path), path);
    fs::path more = fs::path(folder) / "additional_chat_templates";
    if (!fs::is_directory(more)) return chat;
    for (const auto& entry : fs::directory_iterator(more)) {
      if (entry.path().extension() != ".jinja") continue;
      chat.add(entry.path().stem().string(), base::read_file(entry.path().string()), entry.path().string());
    }
    return chat;
  }
  std::string path = config_path;
  if (std::string json_path = join(folder, kJsonFile); fs::exists(json_path)) {
    path = json_path;
    config = base::load_json(json_path);
  }
  SINTER_CHECK(config.is_object() && config.contains("chat_template") && !config["chat_template"].is_null(),
               "'{}' has no chat template: neither {} nor \"chat_template\" in {}; it may be a base model", folder,
               kJinjaFile, kConfigFile);
  const nlohmann::json& found = config["chat_template"];
  if (found.is_string()) {
    chat.add("default", found.get_ref<const std::string&>(), path);
    return chat;
  }
  SINTER_CHECK(found.is_array() && !found.empty(), "'{}': chat_template is neither a text nor a list of templates",
               path);
  for (const nlohmann::json& item : found) {
    SINTER_CHECK(item.is_object() && item.contains("name") && item["name"].is_string() && item.contains("template") &&
                     item["template"].is_string(),
                 "'{}': an item of chat_template has no text 'name' and 'template'", path);
    const auto& name = item["name"].get_ref<const std::string&>();
    chat.add(name, item["template"].get_ref<const std::string&>(), fmt::format("{} ({})", path, name));
  }
  return chat;
}

std::vector<std::string> ChatTemplate::names() const {
  std::vector<std::string> names;
  for (const auto& [name, unused] : templates_) names.push_back(name);
  return names;
}

const ChatTemplate::Named& ChatTemplate::find(const std::string& name) const {
  auto found = templates_.find(name);
  if (found != templates_.end()) return found->second;
  std::string known;
  for (const std::string& other : names()) known += (known.empty() ? "'" : ", '") + other + "'";
  fail("there is no chat template '{}' but {}; choose one by name{}", name, known, base::did_you_mean(name, names()));
}

const std::string& ChatTemplate::source(const std::string& name) const { return find(name).source; }

jinja::Rendered ChatTemplate::render_marked(const ChatInput& input) const {
  std::string name = input.template_name;
  if (name.empty()) {
    bool is_tool_use = !input.tools.is(Kind::none) && templates_.contains("tool_use");
    name = is_tool_use ? "tool_use" : templates_.size() == 1 ? templates_.begin()->first : "default";
  }
  const Named& chosen = find(name);
  jinja::Interpreter interpreter(chosen.title, limits);
  interpreter.now = input.now != 0 ? input.now : static_cast<int64_t>(std::time(nullptr));
  std::vector<std::pair<std::string, Value>> variables;
  for (const auto& [key, token] : special_tokens_) variables.emplace_back(key, Value(token));
  variables.emplace_back("messages", clone(input.messages));
  variables.emplace_back("tools", clone(input.tools));
  variables.emplace_back("documents", clone(input.documents));
  variables.emplace_back("add_generation_prompt", Value(input.add_generation_prompt));
  for (const auto& [key, value] : input.extra) variables.emplace_back(key, clone(value));
  return interpreter.render(*chosen.body, variables);
}

}  // namespace sinter::tokenizer
