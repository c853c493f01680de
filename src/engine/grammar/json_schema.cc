#include "engine/grammar/json_schema.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema_set.h"
#include "engine/grammar/schema_text.h"

namespace sinter::engine::grammar {
namespace {

// Writes the rules. A rule stands for a set of schemas that must all hold (schema_set.h).
class SchemaCompiler {
 public:
  SchemaCompiler(ProgramBuilder& builder, const Json& root) : builder_(builder), schemas_(root, builder.budget()) {}

  int32_t root_rule() { return rule_for(schemas_.root()); }

  int32_t rule_for(SchemaSet set) {
    schemas_.flatten(set);
    const auto known = rules_.find(set);
    if (known != rules_.end()) return known->second;
    builder_.budget().check_time();
    const int32_t rule = builder_.add_rule("schema");
    rules_.emplace(set, rule);
    SINTER_CHECK(++depth_ <= 400, "nested deeper than 400 levels");
    const int32_t in = builder_.rule_start(rule), out = builder_.node();
    builder_.mark_end(out);
    std::vector<SchemaSet> ways;
    if (set.is_impossible) {
    } else if (schemas_.expand(set, ways)) {
      for (const SchemaSet& way : ways) builder_.call(in, rule_for(way), out);
    } else {
      build_value(schemas_.constraints(set), in, out);
    }
    --depth_;
    return rule;
  }

 private:
  // ---- small parts ----

  int32_t space(int32_t from) {
    if (space_rule_ < 0) {
      space_rule_ = builder_.add_rule("space");
      const int32_t in = builder_.rule_start(space_rule_);
      builder_.mark_end(in);
      builder_.mark_end(builder_.literal(in, " "));
      int32_t at = builder_.literal(in, "\n");
      for (int i = 0; i < 20; ++i) {
        builder_.mark_end(at);
        const int32_t next = builder_.node();
        builder_.bytes(at, ' ', ' ', next);
        builder_.bytes(at, '\t', '\t', next);
        at = next;
      }
      builder_.mark_end(at);
    }
    const int32_t to = builder_.node();
    builder_.call(from, space_rule_, to);
    return to;
  }

  // One character of a string, escapes included.
  int32_t char_rule() {
    if (char_rule_ >= 0) return char_rule_;
    char_rule_ = builder_.add_rule("char");
    const int32_t in = builder_.rule_start(char_rule_), out = builder_.node();
    builder_.mark_end(out);
    builder_.chars(in, {{0x20, 0x21}, {0x23, 0x5B}, {0x5D, kLastChar}}, out);
    const int32_t escape = builder_.literal(in, "\\");
    for (char c : std::string("\"\\/bfnrt"))
      builder_.bytes(escape, static_cast<uint8_t>(c), static_cast<uint8_t>(c), out);
    auto hex = [&](int32_t from, int count) {  // the last digit leads to `out`
      for (int i = 0; i < count; ++i) {
        const int32_t to = i + 1 == count ? out : builder_.node();
        for (auto [first, last] : {std::pair<uint8_t, uint8_t>{'0', '9'}, {'a', 'f'}, {'A', 'F'}})
          builder_.bytes(from, first, last, to);
        from = to;
      }
    };
    const int32_t u = builder_.literal(escape, "u");
    const int32_t plain = builder_.node(), low = builder_.node();
    for (auto [first, last] : {std::pair<uint8_t, uint8_t>{'0', '9'}, {'a', 'c'}, {'e', 'f'}, {'A', 'C'}, {'E', 'F'}})
      builder_.bytes(u, first, last, plain);
    hex(plain, 3);
    for (char c : {'d', 'D'}) builder_.bytes(u, static_cast<uint8_t>(c), static_cast<uint8_t>(c), low);
    const int32_t after = builder_.node();  // surrogates are left out
    builder_.bytes(low, '0', '7', after);
    hex(after, 2);
    return char_rule_;
  }

  void build_string(const Constraints& c, int32_t in, int32_t out) {
    const int32_t first = builder_.literal(in, "\"");
    int32_t last;
    if (c.patterns.empty() && c.formats.empty()) {
      SINTER_CHECK(c.min_length <= 20000 && c.max_length <= 20000, "maxLength: lengths above 20000 cannot be honoured");
      last = builder_.node();
      int32_t at = builder_.node();
      builder_.epsilon(first, at);
      for (int64_t i = 0;; ++i) {
        if (i >= c.min_length) builder_.epsilon(at, last);
        if (c.max_length >= 0 && i >= c.max_length) break;
        if (c.max_length < 0 && i >= c.min_length) {
          builder_.call(at, char_rule(), at);
          break;
        }
        const int32_t next = builder_.node();
        builder_.call(at, char_rule(), next);
        at = next;
      }
      if (c.max_length >= 0 && c.min_length > c.max_length) return;
    } else {
      const CharNfa nfa = schemas_.string_texts(c);
      if (nfa.is_empty()) return;
      last = builder_.automaton(first, nfa, TextForm::json);
    }
    builder_.bytes(last, '"', '"', out);
  }

  void build_number(const Constraints& c, int32_t in, int32_t out, bool is_integer) {
    SchemaRange range = c.range;
    range.is_integer = is_integer;
    const CharNfa nfa = number_texts(range, builder_.budget());
    if (!nfa.is_empty()) builder_.epsilon(builder_.automaton(in, nfa, TextForm::plain), out);
  }

  void build_literal(const Json& value, int32_t in, int32_t out) {
    builder_.epsilon(builder_.literal(in, value.dump(-1, ' ', false, Json::error_handler_t::replace)), out);
  }

  // ---- arrays ----

  void build_array(const Constraints& c, int32_t in, int32_t out) {
    if (c.max_items >= 0 && c.min_items > c.max_items) return;
    SINTER_CHECK(c.min_items <= 4096 && c.max_items <= 4096, "maxItems: more than 4096 items cannot be honoured");
    int32_t at = space(builder_.literal(in, "["));
    const int32_t end = builder_.node();
    builder_.bytes(end, ']', ']', out);
    if (c.min_items <= 0) builder_.epsilon(at, end);
    const auto prefix = static_cast<int64_t>(schemas_.prefix_length(c));
    for (int64_t i = 0; c.max_items < 0 || i < c.max_items; ++i) {
      const int32_t item = i == 0 ? at : space(builder_.literal(at, ","));
      const int32_t behind = builder_.node();
      builder_.call(item, rule_for(schemas_.item(c, static_cast<size_t>(i))), behind);
      if (i + 1 >= c.min_items) builder_.epsilon(space(behind), end);
      if (c.max_items < 0 && i >= prefix && i + 1 >= c.min_items) {  // any number more of the same
        const int32_t again = space(builder_.literal(behind, ","));
        builder_.call(again, rule_for(schemas_.item(c, static_cast<size_t>(i) + 1)), behind);
        return;
      }
      at = behind;
    }
  }

  // ---- objects ----

  // The colon and the value behind a key.
  int32_t member(int32_t key_end, int32_t value_rule) {
    const int32_t value = space(builder_.literal(key_end, ":"));
    const int32_t to = builder_.node();
    builder_.call(value, value_rule, to);
    return to;
  }

  struct FreeKeys {
    CharNfa keys;
    int32_t rule;
  };

  void build_object(const Constraints& c, int32_t in, int32_t out) {
    const std::vector<Property> named = schemas_.properties(c);
    std::vector<FreeKeys> free;
    for (auto& [keys, set] : schemas_.free_keys(c, named)) {
      if (!set.is_impossible) free.push_back({keys, rule_for(set)});
    }
    const auto most_certain = static_cast<int64_t>(named.size()) + (free.empty() ? 0 : 1);
    SINTER_CHECK(c.min_properties <= most_certain,
                 "minProperties: {} cannot be honoured, since names of further properties may repeat (up to {} can)",
                 c.min_properties, most_certain);
    SINTER_CHECK(c.max_properties <= 256, "maxProperties: above 256 cannot be honoured");
    // Nodes by how many members there are, up to where it makes no difference any more.
    const int64_t cap = std::max<int64_t>({1, c.min_properties, c.max_properties});
    const int32_t open = space(builder_.literal(in, "{"));
    std::vector<int32_t> at(static_cast<size_t>(cap) + 1, -1);
    at[0] = open;
    for (const Property& property : named) {
      const int32_t rule = rule_for(property.set);
      std::vector<int32_t> next(at.size(), -1);
      auto node_of = [&](std::vector<int32_t>& list, int64_t n) -> int32_t& {
        int32_t& node = list[static_cast<size_t>(std::min(n, cap))];
        if (node < 0) node = builder_.node();
        return node;
      };
      for (int64_t n = 0; n <= cap; ++n) {
        const int32_t here = at[static_cast<size_t>(n)];
        if (here < 0) continue;
        if (!property.is_required) builder_.epsilon(here, node_of(next, n));
        if (c.max_properties >= 0 && n >= c.max_properties) continue;
        const int32_t key = n == 0 ? here : space(builder_.literal(here, ","));
        const int32_t key_end =
            builder_.literal(key, Json(property.name).dump(-1, ' ', false, Json::error_handler_t::replace));
        builder_.epsilon(member(key_end, rule), node_of(next, n + 1));
      }
      at = std::move(next);
    }
    const int32_t close = builder_.node();
    builder_.bytes(close, '}', '}', out);
    const int32_t free_rule = free.empty() ? -1 : add_free_rule(free);
    for (int64_t n = 0; n <= cap; ++n) {
      const int32_t here = at[static_cast<size_t>(n)];
      if (here < 0) continue;
      if (n >= c.min_properties && (c.max_properties < 0 || n <= c.max_properties))
        builder_.epsilon(n == 0 ? here : space(here), close);
      if (free_rule >= 0) build_free(c, free_rule, here, n, close);
    }
  }

  int32_t add_free_rule(const std::vector<FreeKeys>& free) {
    const int32_t rule = builder_.add_rule("member");
    for (const FreeKeys& keys : free) {
      const int32_t quote = builder_.literal(builder_.rule_start(rule), "\"");
      const int32_t key_end = builder_.literal(builder_.automaton(quote, keys.keys, TextForm::json), "\"");
      builder_.mark_end(member(key_end, keys.rule));
    }
    return rule;
  }

  // Members with names of the model's choice behind n members; only the first of them surely counts as one more.
  void build_free(const Constraints& c, int32_t free_rule, int32_t here, int64_t n, int32_t close) {
    if (n + 1 < c.min_properties) return;
    int32_t at = here;
    for (int64_t count = n; c.max_properties < 0 || count < c.max_properties; ++count) {
      const int32_t key = count == 0 ? at : space(builder_.literal(at, ","));
      const int32_t behind = builder_.node();
      builder_.call(key, free_rule, behind);
      builder_.epsilon(space(behind), close);
      if (c.max_properties < 0 && count > 0) {  // and so on
        builder_.epsilon(behind, at);
        return;
      }
      at = behind;
    }
  }

  void build_value(const Constraints& c, int32_t in, int32_t out) {
    if (c.values) {
      for (const Json& value : *c.values) build_literal(value, in, out);
      return;
    }
    if (c.types & kNull) build_literal(nullptr, in, out);
    if (c.types & kBoolean) {
      build_literal(true, in, out);
      build_literal(false, in, out);
    }
    if (c.types & kNumber) {
      build_number(c, in, out, false);
    } else if (c.types & kInteger) {
      build_number(c, in, out, true);
    }
    if (c.types & kString) build_string(c, in, out);
    if (c.types & kArray) build_array(c, in, out);
    if (c.types & kObject) build_object(c, in, out);
  }

  ProgramBuilder& builder_;
  SchemaSets schemas_;
  std::map<SchemaSet, int32_t> rules_;
  int32_t space_rule_ = -1, char_rule_ = -1;
  int depth_ = 0;
};

Json parse_schema(std::string_view text, const GrammarLimits& limits) {
  SINTER_CHECK(static_cast<int64_t>(text.size()) <= limits.max_source_bytes, "the schema is longer than {} bytes",
               limits.max_source_bytes);
  int64_t depth = 0;
  for (char c : text) {  // braces in texts count too: no harm below this bound
    depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    SINTER_CHECK(depth <= 2 * limits.max_nesting, "the schema nests deeper than {} levels", limits.max_nesting);
  }
  Json value = Json::parse(text, nullptr, false);
  SINTER_CHECK(!value.is_discarded(), "the schema is not JSON");
  SINTER_CHECK(value.is_object() || value.is_boolean(), "the schema is {}; expected an object", value.type_name());
  return value;
}

}  // namespace

Program compile_schema(std::string_view schema, const GrammarLimits& limits) {
  const Json root = parse_schema(schema, limits);
  Budget budget(limits);
  ProgramBuilder builder(budget);
  return builder.finish(SchemaCompiler(builder, root).root_rule());
}

Program compile_calls(const std::vector<CallSchema>& calls, const CallForm& form, const GrammarLimits& limits) {
  Budget budget(limits);
  ProgramBuilder builder(budget);
  const int32_t one = builder.add_rule("call");
  const int32_t out = builder.node();
  builder.mark_end(out);
  std::vector<Json> roots;
  roots.reserve(calls.size());
  for (const CallSchema& call : calls) {
    roots.push_back(parse_schema(call.parameters, limits));
    const std::string begin = form.open + "{\"name\": " + Json(call.name).dump() + ", \"" + form.arguments_key + "\": ";
    const int32_t arguments = builder.literal(builder.rule_start(one), begin);
    const int32_t behind = builder.node();
    try {
      builder.call(arguments, SchemaCompiler(builder, roots.back()).root_rule(), behind);
    } catch (const base::Error& e) {
      base::fail("function '{}': {}", call.name, e.what());
    }
    builder.epsilon(builder.literal(behind, "}" + form.close), out);
  }
  const int32_t root = builder.add_rule("calls");
  int32_t at = builder.literal(builder.rule_start(root), form.open_all);
  const int32_t end = builder.node();
  for (int64_t i = 0; i < form.max_calls; ++i) {
    const int32_t begin = i == 0 ? at : builder.literal(at, form.between);
    at = builder.node();
    builder.call(begin, one, at);
    builder.epsilon(at, end);
  }
  builder.mark_end(builder.literal(end, form.close_all));
  return builder.finish(root);
}

}  // namespace sinter::engine::grammar
