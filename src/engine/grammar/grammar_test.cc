#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "engine/grammar/json_schema.h"
#include "engine/grammar/matcher.h"

namespace sinter::engine::grammar {
namespace {

// Tokens: all bytes, and some longer texts, among them ones that hold part of a character.
TokenBytes small_vocabulary() {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, static_cast<char>(b));
  for (const char* text :
       {"{\"", "\":", "\", \"", "true", "null", "\xC3", "\xA9\"", "ab", "12", "name", "\"}", " \"", "[[", "]]"})
    bytes.emplace_back(text);
  bytes.emplace_back("<end>");
  const auto end = static_cast<int32_t>(bytes.size()) - 1;
  return make_vocabulary(std::move(bytes), {end});
}

bool matches(const Program& program, const std::string& text) {
  static const TokenBytes vocabulary = make_vocabulary({"a"}, {});  // texts only: no masks are made
  CompiledGrammar grammar(program, vocabulary);
  return grammar.accepts(grammar.advance(grammar.start(), text));
}
bool schema_matches(const std::string& schema, const std::string& text) {
  return matches(compile_schema(schema, {}), text);
}
bool regex_matches(const std::string& regex, const std::string& text) {
  return matches(compile_regex_program(regex, {}), text);
}
bool gbnf_matches(const std::string& grammar, const std::string& text) {
  return matches(compile_gbnf(grammar, {}), text);
}

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}
std::string schema_error(const std::string& schema) {
  return error_of([&] { compile_schema(schema, {}); });
}

TEST(Grammar, RegexesMatchWholeTexts) {
  EXPECT_TRUE(regex_matches("a+b?", "aaab"));
  EXPECT_FALSE(regex_matches("a+b?", "aaabc"));
  EXPECT_TRUE(regex_matches("^(?:yes|no)$", "no"));
  EXPECT_TRUE(regex_matches("\\d{3}-\\d{2,4}", "123-4567"));
  EXPECT_FALSE(regex_matches("\\d{3}-\\d{2,4}", "123-4"));
  EXPECT_TRUE(regex_matches("[^a-c]\\u00e9.", "d\xC3\xA9\xE2\x82\xAC"));
  EXPECT_TRUE(regex_matches("(a|b)*c{0}", "abab"));
  EXPECT_TRUE(regex_matches("\\p{L}+", "\xC3\xA9t\xC3\xA9"));
}

TEST(Grammar, RegexesThatCannotBeHonouredAreRefusedByName) {
  for (auto [regex, word] : {std::pair{"(?=a)b", "lookaround"},
                             {"(a)\\1", "back references"},
                             {"a\\b", "word boundaries"},
                             {"(a", "without"},
                             {"a{5,2}", "above its most"},
                             {"[z-a]", "wrong way"},
                             {"*a", "nothing before"},
                             {"(((a{1000}){1000}){1000})", "too"},
                             {"a\\", "at the end"},
                             {"[a", "without"}}) {
    const std::string error = error_of([&, regex = regex] { compile_regex_program(regex, {}); });
    EXPECT_NE(error.find(word), std::string::npos) << regex << ": " << error;
  }
}

TEST(Grammar, GbnfReadsLlamaCppsLanguage) {
  const char* arithmetic =
      "root  ::= expr \"\\n\"?  # comment\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]+ |\n  \"(\" expr \")\"\n";
  EXPECT_TRUE(gbnf_matches(arithmetic, "1+(22*3)"));
  EXPECT_FALSE(gbnf_matches(arithmetic, "1+(22*3"));
  EXPECT_TRUE(gbnf_matches("root ::= \"ab\"{2,3} .", "ababx"));
  EXPECT_FALSE(gbnf_matches("root ::= \"ab\"{2,3} .", "abx"));
  EXPECT_FALSE(gbnf_matches("root ::= \"a\"{0} \"b\"", "ab"));
  EXPECT_TRUE(gbnf_matches("root ::= ( \"a\" \"b\"? )+", "aaba"));
  EXPECT_NE(error_of([] { compile_gbnf("root ::= root \"a\" | \"a\"", {}); }).find("left recursion"),
            std::string::npos);
  EXPECT_NE(error_of([] { compile_gbnf("root ::= x", {}); }).find("not defined"), std::string::npos);
  EXPECT_NE(error_of([] { compile_gbnf("a ::= \"x\"", {}); }).find("root"), std::string::npos);
  EXPECT_NE(error_of([] { compile_gbnf("root ::= (\"a\"", {}); }).find("without ')'"), std::string::npos);
}

TEST(Grammar, SchemasAcceptWhatTheySay) {
  const std::string person =
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":3},"age":{"type":"integer","minimum":0,"maximum":120}},)"
      R"("required":["name"],"additionalProperties":false})";
  EXPECT_TRUE(schema_matches(person, R"({"name":"Ann","age":120})"));
  EXPECT_TRUE(schema_matches(person, "{\n  \"name\": \"\\u00e9\"\n}"));
  EXPECT_FALSE(schema_matches(person, R"({"age":120})"));
  EXPECT_FALSE(schema_matches(person, R"({"name":"Anna"})"));
  EXPECT_FALSE(schema_matches(person, R"({"name":"Ann","age":121})"));
  EXPECT_FALSE(schema_matches(person, R"({"name":"Ann","x":1})"));
  const std::string tree = R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"array","items":{"$ref":"#/$defs/t"}}}})";
  EXPECT_TRUE(schema_matches(tree, "[[],[[]]]"));
  EXPECT_FALSE(schema_matches(tree, "[1]"));
  EXPECT_TRUE(schema_matches(R"({"anyOf":[{"type":"null"},{"enum":["a",1]}]})", "1"));
  EXPECT_FALSE(schema_matches(R"({"enum":["a",1],"type":"string"})", "1"));
  EXPECT_TRUE(schema_matches(R"({"type":"string","pattern":"b$","minLength":2})", R"("ab")"));
  EXPECT_FALSE(schema_matches(R"({"type":"string","pattern":"b$","minLength":2})", R"("b")"));
  EXPECT_TRUE(schema_matches(R"({"type":"string","format":"date"})", R"("2024-02-28")"));
  EXPECT_FALSE(schema_matches(R"({"type":"string","format":"date"})", R"("2024-02-30")"));
  EXPECT_TRUE(schema_matches("true", R"({"a":[1,-2.5e3,null,true,"x"]})"));
  EXPECT_TRUE(
      schema_matches(R"({"prefixItems":[{"type":"string"}],"items":{"type":"integer"},"type":"array","minItems":2})",
                     R"(["a", 1, 2])"));
  EXPECT_FALSE(schema_matches(
      R"({"prefixItems":[{"type":"string"}],"items":{"type":"integer"},"type":"array","minItems":2})", R"(["a"])"));
  EXPECT_TRUE(schema_matches(R"({"allOf":[{"type":"integer"},{"multipleOf":3}],"minimum":10})", "12"));
  EXPECT_FALSE(schema_matches(R"({"allOf":[{"type":"integer"},{"multipleOf":3}],"minimum":10})", "13"));
}

TEST(Grammar, NumbersKeepTheirRange) {
  for (auto [low, high] : {std::pair{-3.5, 12.25}, {0.0, 1.0}, {0.05, 0.5}, {-20.0, -1.5}, {99.0, 101.0}}) {
    const std::string schema = fmt::format(R"({{"type":"number","minimum":{},"maximum":{}}})", low, high);
    const Program program = compile_schema(schema, {});
    for (int i = -2500; i <= 12000; i += i > -400 && i < 1300 ? 5 : 95) {
      const double value = i / 100.0;
      if (value == 0) continue;  // 0 and -0
      const std::string text = fmt::format("{}", value);
      EXPECT_EQ(matches(program, text), value >= low && value <= high) << schema << " " << text;
    }
  }
  EXPECT_TRUE(schema_matches(R"({"type":"integer","exclusiveMinimum":9,"maximum":1000})", "10"));
  EXPECT_FALSE(schema_matches(R"({"type":"integer","exclusiveMinimum":9,"maximum":1000})", "9"));
  EXPECT_FALSE(schema_matches(R"({"type":"integer","exclusiveMinimum":9,"maximum":1000})", "1001"));
}

TEST(Grammar, SchemasThatCannotBeHonouredAreRefusedByName) {
  for (auto [schema, word] : {std::pair{R"({"if":{},"then":{}})", "if"},
                              {R"({"type":"array","uniqueItems":true})", "uniqueItems"},
                              {R"({"type":"str"})", "type"},
                              {R"({"requird":["a"]})", "required"},
                              {R"({"$ref":"http://x"})", "$ref"},
                              {R"({"type":"string","format":"iri"})", "format"},
                              {R"({"oneOf":[{"type":"string"},{"minLength":2}]})", "oneOf"},
                              {R"~({"type":"string","pattern":"(?=x)"})~", "pattern"},
                              {"[]", "object"},
                              {"{", "not JSON"},
                              {R"({"type":"string","minLength":3,"maxLength":2})", "no text"},
                              {R"({"not":{}})", "no text"},
                              {R"({"$ref":"#/$defs/x"})", "nothing at"},
                              {R"({"type":"integer","multipleOf":0.3})", "multipleOf"}}) {
    const std::string error = schema_error(schema);
    EXPECT_NE(error.find(word), std::string::npos) << schema << ": " << error;
  }
}

// Draws tokens by the masks alone: whatever comes is a text of the grammar.
std::string random_output(CompiledGrammar& grammar, uint64_t seed) {
  auto state = grammar.start();
  std::string out;
  const auto& vocabulary = grammar.vocabulary();
  for (uint64_t step = 0; step < 4000; ++step) {
    const auto bits = grammar.mask(state);
    std::vector<int32_t> allowed;
    for (int32_t t = 0; t < vocabulary.size; ++t) {
      if ((*bits)[static_cast<size_t>(t) / 32] >> (t % 32) & 1) allowed.push_back(t);
    }
    if (allowed.empty()) {
      ADD_FAILURE() << "a dead end after " << out;
      return out;
    }
    const bool may_end = grammar.accepts(state);
    if (may_end && (grammar.is_final(state) || base::mix_bits(seed, step) % 3 == 0)) return out;
    int32_t token = allowed[base::mix_bits(seed ^ 77, step) % allowed.size()];
    for (char closing : std::string("\"}]")) {  // long outputs come to an end
      const bool may_close = step > 60 && ((*bits)[static_cast<size_t>(closing) / 32] >> (closing % 32) & 1);
      if (may_close) token = closing;
    }
    if (vocabulary.bytes[static_cast<size_t>(token)].empty()) return out;
    out += vocabulary.bytes[static_cast<size_t>(token)];
    state = grammar.advance(state, vocabulary.bytes[static_cast<size_t>(token)]);
  }
  return out;
}

TEST(Grammar, WhatMasksAllowIsJson) {
  static const TokenBytes vocabulary = small_vocabulary();
  for (const char* schema :
       {"true", R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":"number"}},"required":["b"]})",
        R"({"type":"array","items":{"type":"string","minLength":1,"maxLength":5},"minItems":1,"maxItems":4})"}) {
    CompiledGrammar grammar(compile_schema(schema, {}), vocabulary);
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const std::string text = random_output(grammar, seed);
      const bool is_whole = grammar.accepts(grammar.advance(grammar.start(), text));
      EXPECT_TRUE(!is_whole || nlohmann::json::accept(text)) << schema << ": " << text;
    }
  }
}

TEST(Grammar, TokensThatHoldPartOfACharacterAreAllowedWhereTheWholeIs) {
  static const TokenBytes vocabulary = small_vocabulary();
  auto grammar = std::make_shared<CompiledGrammar>(compile_choice({"\"\xC3\xA9\""}, {}), vocabulary);
  GrammarMask mask(grammar);
  auto allows = [&](const std::string& text) {
    const auto bits = mask.mask();
    for (int32_t t = 0; t < vocabulary.size; ++t) {
      if (vocabulary.bytes[static_cast<size_t>(t)] == text && (bits[static_cast<size_t>(t) / 32] >> (t % 32) & 1))
        return true;
    }
    return false;
  };
  mask.accept('"');
  EXPECT_TRUE(allows("\xC3"));
  EXPECT_FALSE(allows("\xA9\""));
  mask.accept(0xC3);
  EXPECT_TRUE(allows("\xA9\""));
  EXPECT_FALSE(mask.is_complete());
  mask.accept(0xA9);
  mask.accept('"');
  EXPECT_TRUE(mask.is_complete());
}

TEST(Grammar, CallsAreWrittenInTheModelsForm) {
  const CallForm form{.open = "<tool_call>\n", .close = "\n</tool_call>", .between = "\n", .max_calls = 2};
  const Program program =
      compile_calls({{"add", R"({"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]})"}}, form, {});
  const std::string one = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"x\": 1}}\n</tool_call>";
  EXPECT_TRUE(matches(program, one));
  EXPECT_TRUE(matches(program, one + "\n" + one));
  EXPECT_FALSE(matches(program, one + "\n" + one + "\n" + one));
  EXPECT_FALSE(matches(program, "<tool_call>\n{\"name\": \"sub\", \"arguments\": {}}\n</tool_call>"));
}

}  // namespace
}  // namespace sinter::engine::grammar
