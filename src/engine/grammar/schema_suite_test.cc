// The JSON-Schema-Test-Suite (tests/golden/json_schema): every schema becomes a grammar or is refused by name, and no
// grammar allows what its schema refuses.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/source_dir.h"
#include "engine/grammar/json_schema.h"
#include "engine/grammar/matcher.h"

namespace sinter::engine::grammar {
namespace {

using Json = nlohmann::ordered_json;

// The same value with spaces behind commas and colons.
std::string spaced(const Json& value) {
  if (value.is_array()) {
    std::string text;
    for (const Json& entry : value) text += (text.empty() ? "" : ", ") + spaced(entry);
    return "[" + text + "]";
  }
  if (!value.is_object()) return value.dump();
  std::string text;
  for (const auto& [key, entry] : value.items())
    text += (text.empty() ? "" : ", ") + Json(key).dump() + ": " + spaced(entry);
  return "{" + text + "}";
}

// Keywords and words that a refusal may name.
void collect_names(const Json& schema, std::set<std::string>& names) {
  if (schema.is_object()) {
    for (const auto& [key, value] : schema.items()) {
      names.insert(key);
      collect_names(value, names);
    }
  } else if (schema.is_array()) {
    for (const Json& entry : schema) collect_names(entry, names);
  }
}

TEST(SchemaSuite, EverySchemaCompilesOrIsRefusedByNameAndNoneAllowsTooMuch) {
  std::ifstream file(base::source_dir() + "/tests/golden/json_schema/draft2020-12.json");
  const Json groups = Json::parse(file);
  ASSERT_GT(groups.size(), 400u);
  static const TokenBytes vocabulary = make_vocabulary({"a"}, {});
  int compiled = 0, refused = 0, right = 0, narrow = 0;
  std::map<std::string, int> narrow_in;
  for (const Json& group : groups) {
    const std::string where = group["file"].get<std::string>() + ": " + group["description"].get<std::string>();
    const std::string source = group["schema"].dump();
    std::optional<CompiledGrammar> grammar;
    try {
      grammar.emplace(compile_schema(source, {}), vocabulary);
    } catch (const base::Error& e) {
      ++refused;
      std::set<std::string> names;
      collect_names(group["schema"], names);
      const std::string message = e.what();
      bool is_named = message.find("no text can satisfy it") != std::string::npos ||
                      message.find("regex: the property") != std::string::npos ||
                      message.find("too complex: not compiled within") != std::string::npos;  // a slow machine's limit
      for (const std::string& name : names) is_named |= !name.empty() && message.find(name) != std::string::npos;
      EXPECT_TRUE(is_named) << where << "\n  " << source << "\n  " << message;
      continue;
    }
    ++compiled;
    for (const Json& test : group["tests"]) {
      bool allowed = false;
      for (const std::string& text : {test["data"].dump(), spaced(test["data"])}) {
        try {
          allowed |= grammar->accepts(grammar->advance(grammar->start(), text));
        } catch (const base::Error&) {  // past the limit on states: not allowed
        }
      }
      if (!test["valid"].get<bool>()) {
        EXPECT_FALSE(allowed) << where << "\n  " << source << "\n  allows " << test["data"].dump();
      }
      right += allowed == test["valid"].get<bool>();
      if (test["valid"].get<bool>() && !allowed) {
        ++narrow;
        ++narrow_in[group["file"].get<std::string>()];
      }
    }
  }
  std::string narrow_text;
  for (const auto& [name, count] : narrow_in) narrow_text += fmt::format(" {} {}", name, count);
  std::printf("%d schemas compiled, %d refused by name; %d texts as the suite says, %d valid ones not allowed:%s\n",
              compiled, refused, right, narrow, narrow_text.c_str());
}

}  // namespace
}  // namespace sinter::engine::grammar
