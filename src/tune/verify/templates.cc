// Chat templates on conversations: text, ids, masks by prefixes and by {% generation %} blocks; packing.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "eval/golden/golden.h"
#include "tune/data/message.h"
#include "tune/data/pack.h"
#include "tune/data/render.h"
#include "tune/verify/case_folder.h"

namespace sinter::tune {
namespace {

using Json = nlohmann::ordered_json;
using Spans = std::vector<std::vector<int64_t>>;
using tokenizer::ByteSpan;

Json read_json(const std::string& path) {
  const Json value = Json::parse(base::read_file(path), nullptr, false);
  SINTER_CHECK(!value.is_discarded(), "'{}' is not JSON", path);
  return value;
}

// Token spans of turns, those that touch joined, as the answers have them.
Spans token_spans(const tokenizer::TracedText& text, const std::vector<ByteSpan>& turns) {
  Spans out;
  for (const ByteSpan& turn : turns) {
    const TokenSpan span = tokens_of(text, turn);
    if (span.past <= span.first) continue;
    if (!out.empty() && out.back()[1] >= span.first) {
      out.back()[1] = span.past;
    } else {
      out.push_back({span.first, span.past});
    }
  }
  return out;
}

size_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

class TemplateCase {
 public:
  explicit TemplateCase(const std::string& folder)
      : folder_(folder),
        case_(read_case(folder)),
        tokenizer_(tokenizer::Tokenizer::load(tokenizer_folder(folder, case_.at("tokenizer")))),
        plain_(load("template.jinja")) {
    if (std::filesystem::exists(folder + "/training.jinja")) {
      training_ = load("training.jinja");
    } else if (case_.value("training_template", "none").find("same template") != std::string::npos) {
      training_ = load("template.jinja");
    }
    const Json given = case_.value("template_kwargs", Json::object());
    for (const auto& [key, value] : given.items()) arguments_.emplace_back(key, tokenizer::jinja::from_json(value));
  }

  Checks run() {
    for (const Json& one : read_json(folder_ + "/conversations.json")) {
      if (one.contains("error")) {
        check_refusal(one);
      } else {
        check_conversation(one);
      }
    }
    Checks checks;
    for (const eval::CaseCounter* counter :
         {&text_, &ids_, &mask_, &bytes_, &refused_, &prompt_, &start_, &generation_, &content_}) {
      if (counter->num_cases() > 0) checks.push_back(counter->check());
    }
    return checks;
  }

 private:
  std::unique_ptr<tokenizer::ChatTemplate> load(const char* name) const {
    std::map<std::string, std::string> special;
    for (const char* key : {"bos_token", "eos_token"}) {
      if (case_.contains(key) && case_[key].is_string()) special[key] = case_[key].get<std::string>();
    }
    const std::string path = folder_ + "/" + name;
    return std::make_unique<tokenizer::ChatTemplate>(base::read_file(path), path, special);
  }
  Renderer renderer(const tokenizer::ChatTemplate& chat, MaskBy by, bool markers_are_text) const {
    return Renderer(tokenizer_, &chat,
                    {.mask_by = by, .markers_are_text = markers_are_text, .template_arguments = arguments_});
  }

  void check_refusal(const Json& one) {
    bool is_refused = false;
    try {
      renderer(*plain_, MaskBy::prefixes, false)
          .render(parse_messages(one.at("messages")), parse_tools(one.value("tools", Json())), false, false);
    } catch (const tokenizer::TemplateError&) {
      is_refused = true;
    }
    refused_.expect(is_refused, one.at("source").get<std::string>() + " should be refused");
  }

  void check_conversation(const Json& one) {
    const auto source = one.at("source").get<std::string>();
    const std::vector<Message> messages = parse_messages(one.at("messages"));
    const tokenizer::jinja::Value tools = parse_tools(one.value("tools", Json()));
    const Renderer plain = renderer(*plain_, MaskBy::prefixes, false);
    const RenderedChat chat = plain.render(messages, tools, false, false);
    text_.expect(chat.text == one.at("text").get<std::string>(), source);
    const tokenizer::TracedText text = plain.encode(chat);
    ids_.expect(text.ids == one.at("ids").get<std::vector<int32_t>>(), source);
    check_mask(one, source, plain, messages, tools);
    check_prompt(one, source, plain, messages, tools);
    if (one.contains("ids_content_as_text")) {
      // The answers encode each piece between special tokens as an input of its own: models that put a space before an
      // input get one after every special token. We put it once, as for a text without markers.
      const RenderedChat safe = renderer(*plain_, MaskBy::prefixes, true).render(messages, tools, false, false);
      const tokenizer::TracedEncoder encoder(tokenizer_);
      using Starts = tokenizer::TracedEncoder::Starts;
      const auto expected = one["ids_content_as_text"].get<std::vector<int32_t>>();
      content_.expect(encoder.encode(safe.text, safe.plain_at).ids == expected ||
                          encoder.encode(safe.text, safe.plain_at, Starts::pieces).ids == expected,
                      source);
    }
    if (!training_ || !one.contains("generation_mask")) return;
    const Renderer training = renderer(*training_, MaskBy::generation, false);
    const RenderedChat marked = training.render(messages, tools, false, true);
    const tokenizer::TracedText tokens = training.encode(marked);
    const Json& same_text = one.contains("generation_text") ? one["generation_text"] : one["text"];
    const Json& same_ids = one.contains("generation_ids") ? one["generation_ids"] : one["ids"];
    generation_.expect(marked.text == same_text.get<std::string>(), source + ": text");
    generation_.expect(tokens.ids == same_ids.get<std::vector<int32_t>>(), source + ": ids");
    generation_.expect(token_spans(tokens, marked.assistant) == one["generation_mask"].get<Spans>(), source);
  }

  void check_mask(const Json& one, const std::string& source, const Renderer& plain,
                  const std::vector<Message>& messages, const tokenizer::jinja::Value& tools) {
    if (one.at("mask").is_null()) {
      bool is_refused = false;
      try {
        plain.render(messages, tools, false, true);
      } catch (const base::Error&) {
        is_refused = true;
      }
      return refused_.expect(is_refused, source + ": its mask should be refused");
    }
    const RenderedChat chat = plain.render(messages, tools, false, true);
    Spans bytes;
    for (const ByteSpan& turn : chat.assistant)
      bytes.push_back({static_cast<int64_t>(turn.begin), static_cast<int64_t>(turn.end)});
    bytes_.expect(bytes == one.at("mask_bytes").get<Spans>(), source);
    const tokenizer::TracedText text = plain.encode(chat);
    mask_.expect(token_spans(text, chat.assistant) == one["mask"].get<Spans>(), source);
  }

  void check_prompt(const Json& one, const std::string& source, const Renderer& plain,
                    const std::vector<Message>& messages, const tokenizer::jinja::Value& tools) {
    size_t last = messages.size() - 1;
    while (last > 0 && messages[last].role != "assistant") --last;
    const auto at = messages.begin() + static_cast<ptrdiff_t>(last);
    const RenderedChat prompt = plain.render({messages.begin(), at}, tools, true, false);
    prompt_.expect(prompt.text == one.at("prompt_text").get<std::string>(), source);
    const RenderedChat all = plain.render({messages.begin(), at + 1}, tools, false, false);
    start_.expect(
        common_prefix(plain.encode(prompt).ids, plain.encode(all).ids) == one.at("completion_starts_at").get<size_t>(),
        source);
  }

  std::string folder_;
  Json case_;
  tokenizer::Tokenizer tokenizer_;
  std::unique_ptr<tokenizer::ChatTemplate> plain_, training_;
  std::vector<std::pair<std::string, tokenizer::jinja::Value>> arguments_;
  eval::CaseCounter text_{"rendered text"}, ids_{"token ids"}, mask_{"assistant mask"}, bytes_{"assistant bytes"},
      refused_{"refused, not guessed"}, prompt_{"prompt text"}, start_{"completion start"},
      generation_{"{% generation %} mask"}, content_{"contents as text"};
};

}  // namespace

Checks verify_chat_template(const std::string& folder, const eval::VerifyOptions&) {
  return TemplateCase(folder).run();
}

Checks verify_packing(const std::string& folder, const eval::VerifyOptions&) {
  const Json file = read_json(folder + "/packing.json");
  const auto lengths = file.at("lengths").get<std::vector<int64_t>>();
  const auto row_tokens = file.at("row_length").get<int64_t>();
  constexpr std::pair<const char*, PackStrategy> kStrategies[] = {
      {"bfd", PackStrategy::best_fit}, {"bfd_split", PackStrategy::best_fit_split}, {"wrapped", PackStrategy::wrapped}};
  Checks checks;
  for (const auto& [name, strategy] : kStrategies) {
    if (!file.at("result").contains(name)) continue;
    eval::CaseCounter counter(std::string("rows, ") + name);
    const std::vector<PackedRow> rows = pack_rows(lengths, row_tokens, strategy);
    const Json& expected = file["result"][name].at("rows");
    counter.expect(rows.size() == expected.size(), "number of rows");
    for (size_t r = 0; r < std::min(rows.size(), expected.size()); ++r) {
      Spans row;
      for (const Placement& p : rows[r]) row.push_back({p.sample, p.begin, p.end});
      counter.expect(row == expected[r].get<Spans>(), fmt::format("row {}", r));
    }
    checks.push_back(counter.check());
  }
  return checks;
}

}  // namespace sinter::tune
