#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/unicode.h"

namespace sinter::tokenizer {
namespace {

constexpr int kMaxNesting = 16;

void add_decoder(const JsonView& spec, DecodeRules& rules, bool& fused, int depth) {
  const std::string& type = spec.at("type").string();
  if (type == "Sequence") {
    spec.check_keys({"type", "decoders"});
    if (depth > kMaxNesting) spec.fail("sequences are nested too deeply");
    JsonView list = spec.at("decoders");
    for (size_t i = 0; i < list.size(); ++i) add_decoder(list.element(i), rules, fused, depth + 1);
  } else if (type == "ByteLevel") {
    spec.check_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (fused || !rules.replacements.empty()) spec.fail("ByteLevel after other decoders is not supported");
    rules.form = DecodeRules::ByteForm::alphabet;
    fused = true;
  } else if (type == "ByteFallback") {
    spec.check_keys({"type"});
    rules.byte_fallback = true;
  } else if (type == "Fuse") {
    spec.check_keys({"type"});
    fused = true;
  } else if (type == "Replace") {
    spec.check_keys({"type", "pattern", "content"});
    JsonView pattern = spec.at("pattern");
    pattern.check_keys({"String", "Regex"});
    const std::string& from = pattern.at("String").string();
    if (from.empty()) pattern.fail("the text to replace is empty");
    if (fused && decode_char(from, 0).length != from.size()) {
      spec.fail("replacing more than one character after Fuse is not supported");
    }
    rules.replacements.push_back({from, spec.at("content").string()});
  } else if (type == "Strip") {
    spec.check_keys({"type", "content", "start", "stop"});
    const std::string& content = spec.at("content").string();
    if (content.size() != 1) spec.at("content").fail("'" + content + "' found, expected one ASCII character");
    if (!fused) spec.fail("Strip before Fuse (on every token) is not supported");
    if (rules.strip_left + rules.strip_right > 0) spec.fail("a second Strip is not supported");
    rules.strip_char = content[0];
    rules.strip_left = static_cast<size_t>(spec.integer_or("start", 0, 0, 1 << 20));
    rules.strip_right = static_cast<size_t>(spec.integer_or("stop", 0, 0, 1 << 20));
  } else if (type == "Metaspace") {
    spec.check_keys({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
    rules.replacements.push_back({spec.string_or("replacement", "\u2581"), " "});
    rules.drop_first_space =
        spec.string_or("prepend_scheme", spec.boolean_or("add_prefix_space", true) ? "always" : "never") != "never";
  } else if (type == "BPEDecoder") {
    spec.check_keys({"type", "suffix"});
    rules.word_suffix = spec.string_or("suffix", "</w>");
  } else {
    spec.at("type").fail("the decoder '" + type +
                         "' is not supported (Sequence, ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace and "
                         "BPEDecoder are)");
  }
}

int32_t token_id(const JsonView& value) { return static_cast<int32_t>(value.integer(0, INT32_MAX)); }

void add_template(const JsonView& spec, TemplateIds& ids) {
  spec.check_keys({"type", "single", "pair", "special_tokens"});
  JsonView single = spec.at("single"), tokens = spec.at("special_tokens");
  bool seen_text = false;
  for (size_t i = 0; i < single.size(); ++i) {
    JsonView item = single.element(i);
    item.check_keys({"SpecialToken", "Sequence"});
    if (auto sequence = item.find("Sequence")) {
      if (sequence->at("id").string() != "A" || seen_text) sequence->fail("expected the sequence A once");
      seen_text = true;
      continue;
    }
    JsonView list = tokens.at(item.at("SpecialToken").at("id").string()).at("ids");
    for (size_t j = 0; j < list.size(); ++j) (seen_text ? ids.after : ids.before).push_back(token_id(list.element(j)));
  }
}

void add_post_processor(const JsonView& spec, TemplateIds& ids, int depth) {
  const std::string& type = spec.at("type").string();
  if (type == "Sequence") {
    spec.check_keys({"type", "processors"});
    if (depth > kMaxNesting) spec.fail("sequences are nested too deeply");
    JsonView list = spec.at("processors");
    for (size_t i = 0; i < list.size(); ++i) add_post_processor(list.element(i), ids, depth + 1);
  } else if (type == "TemplateProcessing") {
    add_template(spec, ids);
  } else if (type == "ByteLevel") {
    spec.check_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});  // changes offsets only
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    spec.check_keys({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
    auto id_of = [&](const char* key) {
      JsonView pair = spec.at(key);
      if (pair.size() != 2) pair.fail("expected [token, id]");
      return token_id(pair.element(1));
    };
    ids.before.push_back(id_of("cls"));
    ids.after.push_back(id_of("sep"));
  } else {
    spec.at("type").fail("the post-processor '" + type +
                         "' is not supported (Sequence, TemplateProcessing, ByteLevel, BertProcessing and "
                         "RobertaProcessing are)");
  }
}

}  // namespace

DecodeRules make_decode_rules(const JsonView& spec) {
  DecodeRules rules;
  if (spec.is_null()) {
    rules.separator = " ";
    return rules;
  }
  bool fused = false;
  add_decoder(spec, rules, fused, 0);
  return rules;
}

TemplateIds make_template(const JsonView& spec) {
  TemplateIds ids;
  if (!spec.is_null()) add_post_processor(spec, ids, 0);
  return ids;
}

nlohmann::json bos_template_json(const std::string& bos, int32_t id) {
  const nlohmann::json a{{"Sequence", {{"id", "A"}, {"type_id", 0}}}}, b{{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  const nlohmann::json first{{"SpecialToken", {{"id", bos}, {"type_id", 0}}}},
      second{{"SpecialToken", {{"id", bos}, {"type_id", 1}}}};
  return {{"type", "TemplateProcessing"},
          {"single", nlohmann::json::array({first, a})},
          {"pair", nlohmann::json::array({first, a, second, b})},
          {"special_tokens",
           {{bos, {{"id", bos}, {"ids", nlohmann::json::array({id})}, {"tokens", nlohmann::json::array({bos})}}}}}};
}

}  // namespace sinter::tokenizer
