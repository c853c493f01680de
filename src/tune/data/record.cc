#include "tune/data/record.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/unicode.h"
#include "tune/data/message.h"

namespace sinter::tune {
namespace {

using Json = nlohmann::ordered_json;
using base::fail;

constexpr int kMaxNesting = 200;  // of a row's lists and objects

constexpr const char* kFormats[] = {"automatic",         "messages",   "sharegpt", "alpaca",  "question",
                                    "prompt_completion", "preference", "labelled", "prompts", "text"};

// Alpaca's own words, for models without a chat template.
std::string alpaca_text(const std::string& instruction, const std::string& input) {
  const std::string head = input.empty() ? "Below is an instruction that describes a task. Write a response that "
                                           "appropriately completes the request.\n\n### Instruction:\n"
                                         : "Below is an instruction that describes a task, paired with an input that "
                                           "provides further context. Write a response that appropriately completes "
                                           "the request.\n\n### Instruction:\n";
  return head + instruction + (input.empty() ? "" : "\n\n### Input:\n" + input) + "\n\n### Response:\n";
}

// A row nested so deep that walking it would need too much stack is refused before it is parsed.
void check_nesting(std::string_view json) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text) {
      if (c == '\\') ++i;
      in_text = c != '"';
      continue;
    }
    in_text = c == '"';
    depth += (c == '[' || c == '{') - (c == ']' || c == '}');
    SINTER_CHECK(depth <= kMaxNesting, "lists and objects nest more than {} deep", kMaxNesting);
  }
}

std::string with_article(const Json& value) {
  const std::string name = value.type_name();
  return name == "null" ? name : (name == "array" || name == "object" ? "an " : "a ") + name;
}

// The fields that RecordSource::fields can give other names to.
void check_field_names(const std::map<std::string, std::string>& fields) {
  static const std::vector<std::string> kNames{"messages", "prompt", "completion", "chosen", "rejected", "label",
                                               "system",   "tools",  "text",       "input",  "margin",   "weight"};
  for (const auto& [name, own] : fields) {
    SINTER_CHECK(std::ranges::find(kNames, name) != kNames.end(), "there is no field '{}'{}; fields are {}", name,
                 base::did_you_mean(name, kNames), fmt::join(kNames, ", "));
  }
}

class RowParser {
 public:
  RowParser(const Json& row, const RecordSource& source) : row_(row), source_(source) {}

  Record parse() {
    Record record;
    record.format = source_.format == RecordFormat::automatic ? recognise() : source_.format;
    if (const Json* tools = field("tools", {"tools"})) record.tools = parse_tools(*tools);
    record.weight = number("weight", {"sample_weight", "weight"}, 1);
    SINTER_CHECK(record.weight >= 0, "the row's weight is {}, expected 0 or more", record.weight);
    fill(record);
    add_system(record);
    if (source_.as_chat && record.prompt.text.empty() == record.prompt.messages.empty())
      record.is_chat = *source_.as_chat;
    return record;
  }

 private:
  // The first of the names that the row has with a value, or the one the source names for it.
  const Json* field(const char* name, std::initializer_list<const char*> names) const {
    const auto renamed = source_.fields.find(name);
    if (renamed != source_.fields.end()) {
      const auto found = row_.find(renamed->second);
      return found == row_.end() || found->is_null() ? nullptr : &*found;
    }
    for (const char* one : names) {
      const auto found = row_.find(one);
      if (found != row_.end() && !found->is_null()) return &*found;
    }
    return nullptr;
  }
  const Json* messages() const { return field("messages", {"messages", "conversations", "conversation"}); }
  const Json* chosen() const { return field("chosen", {"chosen", "chosen_messages"}); }
  const Json* rejected() const { return field("rejected", {"rejected", "rejected_messages"}); }
  const Json* label() const { return field("label", {"label", "kto_tag"}); }
  const Json* answer() const { return field("completion", {"completion", "response", "output", "answer"}); }
  const Json* given() const { return field("prompt", {"prompt", "instruction", "question", "input"}); }
  bool is_instruction(const Json* value) const {
    return value && row_.contains("instruction") && value == &row_["instruction"];
  }

  double number(const char* name, std::initializer_list<const char*> names, double standard) const {
    const Json* value = field(name, names);
    if (!value) return standard;
    SINTER_CHECK(value->is_number(), "\"{}\" is {}, expected a number", name, value->type_name());
    return value->get<double>();
  }

  std::string fields_found() const {
    std::string found;
    for (const auto& [key, value] : row_.items()) found += (found.empty() ? "\"" : ", \"") + key + "\"";
    return found.empty() ? "no field" : found;
  }

  RecordFormat recognise() const {
    if (chosen() && rejected()) return RecordFormat::preference;
    if (label() && (label()->is_boolean() || label()->is_number()) && (messages() || (given() && answer())))
      return RecordFormat::labelled;
    if (const Json* list = messages(); list && holds_messages(*list)) {
      return list->is_array() && (*list)[0].contains("from") ? RecordFormat::sharegpt : RecordFormat::messages;
    }
    const Json *prompt = given(), *completion = answer();
    if (prompt && completion) {
      if (is_instruction(prompt)) return RecordFormat::alpaca;
      const bool is_question = prompt->is_string() && !row_.contains("prompt") && !source_.fields.contains("prompt");
      return is_question ? RecordFormat::question : RecordFormat::prompt_completion;
    }
    if (prompt && !is_instruction(prompt)) return RecordFormat::prompts;
    if (is_instruction(prompt)) return RecordFormat::prompts;
    if (field("text", {"text"})) return RecordFormat::text;
    check_messages();
    if (row_.size() == 1 && row_.begin()->is_array() && !row_.begin()->empty() && (*row_.begin())[0].is_object()) {
      fail("the rows are inside \"{}\": expected that list itself, or a row on each line", row_.begin().key());
    }
    fail(
        "the fields {} are of no known form; say which they are: tune.fields = {{prompt = \"...\", completion = "
        "\"...\"}} "
        "in a recipe, --field prompt=... for `sinter data preview`",
        fields_found());
  }

  // Says what is wrong with messages that are there but are none.
  void check_messages() const {
    const Json* list = messages();
    if (!list) return;
    SINTER_CHECK(list->is_array(), "the messages are {}, expected a list of {{\"role\", \"content\"}}",
                 with_article(*list));
    SINTER_CHECK(!list->empty(), "the list of messages is empty");
    SINTER_CHECK((*list)[0].is_object(), "message 1 is {}, expected {{\"role\", \"content\"}}",
                 with_article((*list)[0]));
    fail("message 1 has neither \"role\" nor \"from\"");
  }

  const Json& need(const Json* value, const char* what, const char* names) const {
    if (!value) fail("no {}: expected {} and found {}", what, names, fields_found());
    return *value;
  }

  // A text as one message of `role` and as a text; messages as they are. Sets is_chat for messages.
  Part part(const Json& value, const char* role, bool& is_chat) const {
    if (holds_messages(value)) {
      is_chat = true;
      return {parse_messages(value), ""};
    }
    SINTER_CHECK(value.is_string(), "the {} is {}, expected a text or messages",
                 role == std::string_view("user") ? "prompt" : "answer", value.type_name());
    const std::string text = value.get<std::string>();
    return {{make_message(role, text)}, text};
  }

  Part prompt_part(bool& is_chat) const {
    if (const Json* list = messages(); list && holds_messages(*list)) return part(*list, "user", is_chat);
    const Json& prompt = need(given(), "prompt", "\"prompt\", \"question\", \"instruction\" or \"messages\"");
    if (is_instruction(&prompt)) {
      is_chat = true;
      SINTER_CHECK(prompt.is_string(), "\"instruction\" is {}, expected a text", prompt.type_name());
      const Json* input = field("input", {"input"});
      SINTER_CHECK(!input || input->is_string(), "\"input\" is {}, expected a text", input->type_name());
      const std::string instruction = prompt.get<std::string>(), more = input ? input->get<std::string>() : "";
      return {{make_message("user", more.empty() ? instruction : instruction + "\n" + more)},
              alpaca_text(instruction, more)};
    }
    const bool is_named = row_.contains("prompt") || source_.fields.contains("prompt");
    Part out = part(prompt, "user", is_chat);
    if (!is_named && !out.text.empty()) {
      is_chat = true;
      out.text += "\n";
    }
    return out;
  }

  void fill(Record& record) const {
    switch (record.format) {
      case RecordFormat::automatic:
        break;
      case RecordFormat::messages:
      case RecordFormat::sharegpt:
        record.is_chat = true;
        record.completion.messages =
            parse_messages(need(messages(), "conversation", "\"messages\" or \"conversations\""));
        SINTER_CHECK(!record.completion.messages.empty(), "the conversation is empty");
        break;
      case RecordFormat::alpaca:
      case RecordFormat::question:
      case RecordFormat::prompt_completion:
        record.prompt = prompt_part(record.is_chat);
        record.completion = part(need(answer(), "answer", "\"completion\", \"response\", \"output\" or \"answer\""),
                                 "assistant", record.is_chat);
        break;
      case RecordFormat::preference:
        fill_pair(record);
        break;
      case RecordFormat::labelled:
        fill_labelled(record);
        break;
      case RecordFormat::prompts:
        record.prompt = prompt_part(record.is_chat);
        break;
      case RecordFormat::text: {
        const Json& text = need(field("text", {"text"}), "text", "\"text\"");
        SINTER_CHECK(text.is_string(), "\"text\" is {}, expected a text", text.type_name());
        record.completion.text = text.get<std::string>();
        break;
      }
    }
  }

  void fill_pair(Record& record) const {
    const Json &good = need(chosen(), "chosen answer", "\"chosen\""),
               &bad = need(rejected(), "rejected answer", "\"rejected\"");
    record.margin = number("margin", {"margin"}, 0);
    record.completion = part(good, "assistant", record.is_chat);
    record.rejected = part(bad, "assistant", record.is_chat);
    const Json* list = messages();
    if ((list && holds_messages(*list)) || given()) {
      record.prompt = prompt_part(record.is_chat);
    } else if (record.is_chat) {
      split_common_messages(record);
    } else {
      split_common_text(record);
    }
  }

  // Both answers begin with the prompt: what they have in common is the prompt.
  static void split_common_messages(Record& record) {
    std::vector<Message>&good = record.completion.messages, &bad = record.rejected.messages;
    const size_t most = std::min(good.size(), bad.size());
    size_t common = 0;
    while (common < most && good[common].role == bad[common].role && good[common].content == bad[common].content)
      ++common;
    SINTER_CHECK(common < most && common > 0,
                 "\"chosen\" and \"rejected\" should begin with the same messages and then differ");
    record.prompt.messages.assign(good.begin(), good.begin() + static_cast<ptrdiff_t>(common));
    good.erase(good.begin(), good.begin() + static_cast<ptrdiff_t>(common));
    bad.erase(bad.begin(), bad.begin() + static_cast<ptrdiff_t>(common));
  }
  static void split_common_text(Record& record) {
    std::string &good = record.completion.text, &bad = record.rejected.text;
    size_t common = 0;
    while (common < std::min(good.size(), bad.size()) && good[common] == bad[common]) ++common;
    while (common > 0 && common < good.size() && (static_cast<unsigned char>(good[common]) & 0xC0) == 0x80) --common;
    if (common > 0 && good[common - 1] == ' ') --common;  // a space belongs to the word behind it
    SINTER_CHECK(good != bad, "\"chosen\" and \"rejected\" are the same text");
    record.prompt.text = good.substr(0, common);
    good.erase(0, common);
    bad.erase(0, common);
    record.completion.messages = {make_message("assistant", good)};
    record.rejected.messages = {make_message("assistant", bad)};
  }

  void fill_labelled(Record& record) const {
    const Json& value = need(label(), "label", "\"label\" or \"kto_tag\"");
    SINTER_CHECK(value.is_boolean() || (value.is_number() && (value == 0 || value == 1)),
                 "the label is {}, expected true or false", value.dump().substr(0, 40));
    record.label = value.is_boolean() ? value.get<bool>() : value == 1;
    if (given() && answer()) {
      record.prompt = prompt_part(record.is_chat);
      record.completion = part(*answer(), "assistant", record.is_chat);
      return;
    }
    record.is_chat = true;
    std::vector<Message> all = parse_messages(need(messages(), "answer", "\"completion\" or \"messages\""));
    SINTER_CHECK(all.size() > 1 && all.back().role == "assistant", "the last message should be the assistant's");
    record.completion.messages = {all.back()};
    all.pop_back();
    record.prompt.messages = std::move(all);
  }

  void add_system(Record& record) const {
    const Json* system = field("system", {"system", "system_prompt"});
    if (!system || !system->is_string() || !record.is_chat) return;
    const std::string text = system->get<std::string>();
    std::vector<Message>& first = record.prompt.messages.empty() ? record.completion.messages : record.prompt.messages;
    if (text.empty() || first.empty() || first[0].role == "system") return;
    first.insert(first.begin(), make_message("system", text));
  }

  const Json& row_;
  const RecordSource& source_;
};

}  // namespace

const std::vector<std::string>& format_names() {
  static const std::vector<std::string> kNames(std::begin(kFormats), std::end(kFormats));
  return kNames;
}

RecordFormat parse_format(std::string_view name) {
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    if (name == kFormats[i]) return static_cast<RecordFormat>(i);
  }
  std::string all;
  for (const char* one : kFormats) all += (all.empty() ? "" : ", ") + std::string(one);
  fail("there is no data format '{}'{}; formats are {}", name, base::did_you_mean(name, format_names()), all);
}

const char* format_name(RecordFormat format) { return kFormats[static_cast<size_t>(format)]; }

void check_source(const RecordSource& source) { check_field_names(source.fields); }

Record parse_record(std::string_view json, const RecordSource& source, const std::string& origin) {
  try {
    check_nesting(json);
    const Json row = Json::parse(json, nullptr, false);
    SINTER_CHECK(tokenizer::is_valid_utf8(json), "it is no text: bytes that are not UTF-8");
    SINTER_CHECK(!row.is_discarded(), "it is not JSON: '{}'", json.substr(0, 80));
    SINTER_CHECK(row.is_object(), "it is {}, expected an object such as {{\"prompt\": ..., \"completion\": ...}}",
                 with_article(row));
    Record record = RowParser(row, source).parse();
    record.row = json;
    record.origin = origin;
    return record;
  } catch (const std::exception& e) {
    fail("{}: {}", origin, e.what());
  }
}

}  // namespace sinter::tune
