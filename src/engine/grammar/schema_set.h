// Sets of JSON schemas that must all hold for one value: how allOf, $ref beside other keywords, and properties that
// several schemas speak of are combined. There are finitely many such sets, so recursive schemas come to an end.
#pragma once
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/grammar/char_nfa.h"
#include "engine/grammar/schema_text.h"

namespace sinter::engine::grammar {

using Json = nlohmann::ordered_json;

enum TypeBits : uint32_t {
  kNull = 1,
  kBoolean = 2,
  kNumber = 4,
  kInteger = 8,
  kString = 16,
  kArray = 32,
  kObject = 64,
  kAllTypes = 127
};

struct SchemaSet {
  struct Part {
    const Json* schema;
    uint32_t done;  // 1: anyOf, 2: oneOf are dealt with; 4: $ref and allOf
    auto operator<=>(const Part&) const = default;
  };
  std::vector<Part> parts;  // sorted
  bool is_impossible = false;
  auto operator<=>(const SchemaSet&) const = default;
};

// What a set without anyOf and oneOf comes to.
struct Constraints {
  uint32_t types = kAllTypes;
  std::optional<std::vector<Json>> values;  // only these
  SchemaRange range;
  int64_t min_length = 0, max_length = -1, min_items = 0, max_items = -1, min_properties = 0, max_properties = -1;
  std::vector<std::string> patterns, formats;
  std::vector<const Json*> schemas;  // the parts, for what depends on several keywords
};

struct Property {
  std::string name;
  bool is_required;
  SchemaSet set;
};

class SchemaSets {
 public:
  // The root must outlive it.
  SchemaSets(const Json& root, Budget& budget) : root_(root), budget_(budget) {}

  SchemaSet root() const {
    SchemaSet set;
    add(set, root_);
    return set;
  }
  // Follows $ref and allOf, drops `true`.
  void flatten(SchemaSet& set);
  // Where the set has anyOf or oneOf: true, and a set for each branch of the first.
  bool expand(const SchemaSet& set, std::vector<SchemaSet>& ways);
  Constraints constraints(const SchemaSet& set);

  size_t prefix_length(const Constraints& c) const;
  SchemaSet item(const Constraints& c, size_t index) const;
  std::vector<Property> properties(const Constraints& c);
  // Names that are not among `named`, by the schemas they must obey.
  std::vector<std::pair<CharNfa, SchemaSet>> free_keys(const Constraints& c, const std::vector<Property>& named);
  CharNfa string_texts(const Constraints& c);

 private:
  const Json& resolve(const std::string& ref) const;
  void check_keywords(const Json& schema) const;
  void add_constraints(const Json& schema, Constraints& c);
  void add_not(const Json& schema, Constraints& c) const;
  bool are_exclusive(const Json& a, const Json& b, int depth) const;
  bool accepts(const Json& schema, const Json& value, int depth);
  bool accepts_object(const Json& schema, const Json& value, int depth);
  bool matches(const std::string& pattern, const std::string& text);
  const CharNfa& regex(const std::string& pattern);
  void add(SchemaSet& set, const Json& schema) const;

  const Json& root_;
  Budget& budget_;
  std::map<std::string, CharNfa> regexes_;
};

}  // namespace sinter::engine::grammar
