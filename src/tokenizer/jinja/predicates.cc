// The tests behind `is`: x is defined, x is divisibleby 3, ...
#include "tokenizer/jinja/runtime.h"

namespace sinter::tokenizer::jinja {
namespace {

Value only_argument(const Arguments& arguments, std::string_view what) {
  ArgumentReader reader(arguments, fmt::format("test '{}'", what));
  Value other = reader.require("other");
  reader.finish();
  return other;
}

template <Kind kKind>
bool is_kind(Runtime&, const Value& value, const Arguments&) {
  return value.is(kKind);
}

bool is_defined(Runtime&, const Value& value, const Arguments&) { return !value.is(Kind::undefined); }
bool is_number(Runtime&, const Value& value, const Arguments&) { return value.is_number(); }
bool is_just_true(Runtime&, const Value& value, const Arguments&) { return value.is(Kind::boolean) && value.boolean(); }
bool is_just_false(Runtime&, const Value& value, const Arguments&) {
  return value.is(Kind::boolean) && !value.boolean();
}

// In Python a sequence has a length and items: texts, dicts and even undefined values do.
bool is_sequence(Runtime&, const Value& value, const Arguments&) {
  return value.is(Kind::text) || value.is(Kind::list) || value.is(Kind::dict) || value.is(Kind::undefined);
}

bool is_iterable(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return is_sequence(runtime, value, arguments) || value.is(Kind::iterator) || value.is(Kind::loop);
}

// Jinja's undefined values can be called too, if only to say what is undefined.
bool is_callable(Runtime&, const Value& value, const Arguments&) {
  return value.is(Kind::callable) || value.is(Kind::loop) || value.is(Kind::undefined);
}

template <int kRest>
bool has_parity(Runtime& runtime, const Value& value, const Arguments&) {
  return equal(runtime.binary("%", value, Value(2)), Value(kRest), runtime.meter);
}

bool is_divisible(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return equal(runtime.binary("%", value, only_argument(arguments, "divisibleby")), Value(0), runtime.meter);
}

bool is_lower(Runtime& runtime, const Value& value, const Arguments&) {
  std::string text = to_text(value, runtime.meter);
  return to_lower(text) == text && to_upper(text) != text;
}

bool is_upper(Runtime& runtime, const Value& value, const Arguments&) {
  std::string text = to_text(value, runtime.meter);
  return to_upper(text) == text && to_lower(text) != text;
}

bool is_equal(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return equal(value, only_argument(arguments, "eq"), runtime.meter);
}
bool is_unequal(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return !equal(value, only_argument(arguments, "ne"), runtime.meter);
}
bool is_less(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return compare(value, only_argument(arguments, "lt"), runtime.meter) < 0;
}
bool is_at_most(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return compare(value, only_argument(arguments, "le"), runtime.meter) <= 0;
}
bool is_greater(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return compare(value, only_argument(arguments, "gt"), runtime.meter) > 0;
}
bool is_at_least(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return compare(value, only_argument(arguments, "ge"), runtime.meter) >= 0;
}
bool is_in(Runtime& runtime, const Value& value, const Arguments& arguments) {
  return runtime.contains(only_argument(arguments, "in"), value);
}

bool is_same(Runtime& runtime, const Value& value, const Arguments& arguments) {
  Value other = only_argument(arguments, "sameas");
  if (value.object()) return value.object() == other.object();
  return value.kind() == other.kind() && equal(value, other, runtime.meter);
}

bool is_filter(Runtime&, const Value& value, const Arguments&) {
  return value.is(Kind::text) && filter_table().contains(value.text());
}
bool is_test(Runtime&, const Value& value, const Arguments&) {
  return value.is(Kind::text) && test_table().contains(value.text());
}
bool is_escaped(Runtime&, const Value&, const Arguments&) { return false; }

}  // namespace

const std::unordered_map<std::string_view, Test>& test_table() {
  static const std::unordered_map<std::string_view, Test> table{
      {"defined", is_defined},
      {"undefined", is_kind<Kind::undefined>},
      {"none", is_kind<Kind::none>},
      {"boolean", is_kind<Kind::boolean>},
      {"true", is_just_true},
      {"false", is_just_false},
      {"integer", is_kind<Kind::integer>},
      {"float", is_kind<Kind::floating>},
      {"number", is_number},
      {"string", is_kind<Kind::text>},
      {"mapping", is_kind<Kind::dict>},
      {"sequence", is_sequence},
      {"iterable", is_iterable},
      {"callable", is_callable},
      {"odd", has_parity<1>},
      {"even", has_parity<0>},
      {"divisibleby", is_divisible},
      {"lower", is_lower},
      {"upper", is_upper},
      {"==", is_equal},
      {"eq", is_equal},
      {"equalto", is_equal},
      {"!=", is_unequal},
      {"ne", is_unequal},
      {"<", is_less},
      {"lt", is_less},
      {"lessthan", is_less},
      {"<=", is_at_most},
      {"le", is_at_most},
      {">", is_greater},
      {"gt", is_greater},
      {"greaterthan", is_greater},
      {">=", is_at_least},
      {"ge", is_at_least},
      {"in", is_in},
      {"sameas", is_same},
      {"filter", is_filter},
      {"test", is_test},
      {"escaped", is_escaped},
  };
  return table;
}

}  // namespace sinter::tokenizer::jinja
