#include "tokenizer/jinja/runtime.h"

#include <algorithm>
#include <cmath>

#include "base/html.h"
#include "base/text.h"

namespace sinter::tokenizer::jinja {
namespace {

using base::fail;

Value no_attribute(const Value& object, std::string_view name) {
  return Value::undefined(fmt::format("'{} object' has no attribute '{}'", type_name(object), name));
}

Value loop_attribute(const Loop& loop, std::string_view name) {
  auto count = static_cast<int64_t>(loop.items ? loop.items->items.size() : 0);
  auto index = static_cast<int64_t>(loop.index);
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return count - index;
  if (name == "revindex0") return count - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == count;
  if (name == "length") return count;
  if (name == "depth") return loop.depth;
  if (name == "depth0") return loop.depth - 1;
  if (name == "previtem") {
    return index > 0 ? loop.items->items[loop.index - 1] : Value::undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index + 1 < count ? loop.items->items[loop.index + 1] : Value::undefined("there is no next item");
  }
  return Value::undefined(fmt::format("'loop' has no attribute '{}'", name));
}

// Empty when there is none at that place.
std::string_view code_point_at(std::string_view text, int64_t index) {
  if (index < 0) return {};
  while (!text.empty()) {
    size_t n = code_point_bytes(text);
    if (index-- == 0) return text.substr(0, n);
    text.remove_prefix(n);
  }
  return {};
}

// Python's rule for the bounds of a slice: clamped, negative from the end.
struct SliceRange {
  int64_t begin, end, step;
};

SliceRange slice_range(int64_t size, const Value& begin, const Value& end, const Value& step) {
  SliceRange range{0, 0, 1};
  if (!step.is(Kind::none)) range.step = to_integer(step, "the step of a slice");
  SINTER_CHECK(range.step != 0, "the step of a slice is 0");
  range.step = std::clamp<int64_t>(range.step, -INT32_MAX, INT32_MAX);  // no text or list is longer
  bool is_forward = range.step > 0;
  auto bound = [&](const Value& value, int64_t standard) {
    if (value.is(Kind::none)) return standard;
    int64_t at = to_integer(value, "the bound of a slice");
    if (at < 0) at = at < -size ? -1 : at + size;
    if (at < 0) return is_forward ? int64_t{0} : int64_t{-1};
    return std::min(at, is_forward ? size : size - 1);
  };
  range.begin = bound(begin, is_forward ? 0 : size - 1);
  range.end = bound(end, is_forward ? size : -1);
  return range;
}

template <class Take>
void walk(const SliceRange& range, Take take) {
  for (int64_t i = range.begin; range.step > 0 ? i < range.end : i > range.end; i += range.step) {
    take(static_cast<size_t>(i));
  }
}

Value integer_result(std::string_view op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool overflow = op == "+"   ? __builtin_add_overflow(a, b, &out)
                  : op == "-" ? __builtin_sub_overflow(a, b, &out)
                              : __builtin_mul_overflow(a, b, &out);
  SINTER_CHECK(!overflow, "{} {} {} is too large for a whole number", a, op, b);
  return out;
}

Value divide(std::string_view op, const Value& a, const Value& b) {
  SINTER_CHECK(b.number() != 0, "division by zero");
  if (op == "/") return a.number() / b.number();
  if (a.is_whole() && b.is_whole()) {
    int64_t x = a.integer(), y = b.integer();
    if (y == -1) return op == "//" ? integer_result("-", 0, x) : Value(0);
    int64_t quotient = x / y, rest = x % y;
    if (rest != 0 && (rest < 0) != (y < 0)) {  // Python rounds towards minus infinity
      --quotient;
      rest += y;
    }
    return op == "//" ? quotient : rest;
  }
  double quotient = std::floor(a.number() / b.number());
  if (op == "//") return quotient;
  double rest = std::fmod(a.number(), b.number());
  if (rest != 0 && (rest < 0) != (b.number() < 0)) rest += b.number();
  return rest;
}

Value power(const Value& a, const Value& b) {
  if (!a.is_whole() || !b.is_whole() || b.integer() < 0) return std::pow(a.number(), b.number());
  int64_t base = a.integer(), exponent = b.integer(), out = 1;
  if (base == 0 || base == 1) return exponent == 0 ? 1 : base;
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  SINTER_CHECK(exponent < 64, "{} ** {} is too large for a whole number", base, exponent);
  for (; exponent > 0; --exponent) out = integer_result("*", out, base).integer();
  return out;
}

}  // namespace

Runtime::~Runtime() {
  for (const auto& object : kept_) object->clear();
}

void Runtime::check_size(size_t size_bytes) const {
  SINTER_CHECK(size_bytes <= limits_.max_output_bytes,
               "the template makes a text of more than {} bytes and was stopped", limits_.max_output_bytes);
}

void Runtime::charge_text(size_t size_bytes) {
  check_size(size_bytes);
  charge(size_bytes / 64);
}

void Runtime::keep(std::shared_ptr<Object> object) {
  if (std::exchange(object->is_kept, true)) return;
  kept_.push_back(std::move(object));
}

void check_defined(const Value& value, std::string_view use) {
  if (!value.is(Kind::undefined)) return;
  const auto& hint = value.undefined_hint().hint;
  fail("{}, but it is {}", hint ? *hint : "a value is undefined", use);
}

int64_t to_integer(const Value& value, std::string_view what) {
  SINTER_CHECK(value.is_whole(), "{} is {} ({}); expected a whole number", what, short_repr(value), type_name(value));
  return value.integer();
}

Value Runtime::call(const Value& callee, Arguments& arguments) {
  check_defined(callee, "called");
  if (callee.is(Kind::loop)) {
    SINTER_CHECK(callee.loop()->recurse.is(Kind::callable), "loop(...) needs a loop marked 'recursive'");
    return call(callee.loop()->recurse, arguments);
  }
  SINTER_CHECK(callee.is(Kind::callable) && callee.callable()->call, "a {} cannot be called", type_name(callee));
  auto held = callee.callable();  // the function may drop the last reference to itself
  return held->call(*this, arguments);
}

Value Runtime::attribute(const Value& object, std::string_view name) {
  check_defined(object, fmt::format("asked for '{}'", name));
  if (object.is(Kind::name_space)) {
    const Value* found = object.name_space()->attributes.find(name);
    return found ? *found : Value::undefined(fmt::format("the namespace has no attribute '{}'", name));
  }
  Value method = bind_method(object, name);
  if (!method.is(Kind::undefined)) return method;
  if (object.is(Kind::loop)) return loop_attribute(*object.loop(), name);
  if (object.is(Kind::list) && object.list()->is_group && object.list()->items.size() == 2) {
    if (name == "grouper") return object.list()->items[0];
    if (name == "list") return object.list()->items[1];
  }
  if (object.is(Kind::callable) && name == "name") return Value(object.callable()->name);
  if (object.is(Kind::dict)) {
    if (const Value* found = object.dict()->find(name)) return *found;
  }
  return no_attribute(object, name);
}

Value Runtime::item(const Value& object, const Value& key) {
  check_defined(object, fmt::format("asked for the item {}", short_repr(key)));
  if (object.is(Kind::dict) && !key.is(Kind::dict) && (!key.is(Kind::list) || key.list()->is_tuple)) {
    if (const Value* found = object.dict()->find(key)) return *found;
  } else if (object.is(Kind::list) && key.is_whole()) {
    const auto& items = object.list()->items;
    auto size = static_cast<int64_t>(items.size());
    int64_t at = key.integer() < 0 ? key.integer() + size : key.integer();
    if (at >= 0 && at < size) return items[static_cast<size_t>(at)];
  } else if (object.is(Kind::text) && key.is_whole()) {
    charge_walk(object.text().size());
    int64_t at = key.integer() < 0 ? key.integer() + length(object) : key.integer();
    if (std::string_view point = code_point_at(object.text(), at); !point.empty()) return Value(point);
  }
  if (!key.is(Kind::text)) {
    return Value::undefined(fmt::format("the {} has no item {}", type_name(object), short_repr(key)));
  }
  if (object.is(Kind::dict)) {
    Value method = bind_method(object, key.text());
    return method.is(Kind::undefined) ? no_attribute(object, key.text()) : method;
  }
  return attribute(object, key.text());
}

Value Runtime::slice(const Value& object, const Value& begin, const Value& end, const Value& step) {
  check_defined(object, "cut by a slice");
  if (object.is(Kind::text)) {
    charge_walk(object.text().size());
    auto parts = split_code_points(object.text());
    std::string out;
    walk(slice_range(static_cast<int64_t>(parts.size()), begin, end, step), [&](size_t i) { out += parts[i]; });
    return out;
  }
  if (!object.is(Kind::list)) return Value::undefined(fmt::format("a {} cannot be cut by a slice", type_name(object)));
  const auto& items = object.list()->items;
  std::vector<Value> out;
  walk(slice_range(static_cast<int64_t>(items.size()), begin, end, step), [&](size_t i) {
    charge(1);
    out.push_back(items[i]);
  });
  return object.list()->is_tuple ? make_tuple(std::move(out)) : make_list(std::move(out));
}

Value Runtime::binary(std::string_view op, const Value& a, const Value& b) {
  for (const Value* side : {&a, &b}) check_defined(*side, fmt::format("used with '{}'", op));
  if (op == "%" && a.is(Kind::text)) return format_percent(*this, a.text(), b);
  if (a.is_number() && b.is_number()) {
    if (op == "/" || op == "//" || op == "%") return divide(op, a, b);
    if (op == "**") return power(a, b);
    if (a.is_whole() && b.is_whole()) return integer_result(op, a.integer(), b.integer());
    return op == "+" ? a.number() + b.number() : op == "-" ? a.number() - b.number() : a.number() * b.number();
  }
  if (op == "+" && a.is(Kind::text) && b.is(Kind::text)) {
    charge_text(a.text().size() + b.text().size());
    if (a.is_markup() == b.is_markup()) return marked_as(a, a.text() + b.text());
    return Value::markup(a.is_markup() ? a.text() + base::escape_html(b.text())
                                       : base::escape_html(a.text()) + b.text());
  }
  if (op == "+" && a.is(Kind::list) && b.is(Kind::list) && a.list()->is_tuple == b.list()->is_tuple) {
    charge(a.list()->items.size() + b.list()->items.size());
    std::vector<Value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return a.list()->is_tuple ? make_tuple(std::move(items)) : make_list(std::move(items));
  }
  if (op == "*" && (a.is_whole() || b.is_whole())) {
    const Value& whole = a.is_whole() ? a : b;
    const Value& other = a.is_whole() ? b : a;
    auto times = static_cast<size_t>(std::clamp<int64_t>(whole.integer(), 0, int64_t{1} << 32));
    if (other.is(Kind::text)) {
      charge_text(other.text().size() * times);
      std::string out;
      out.reserve(other.text().size() * times);
      for (size_t i = 0; i < times && !other.text().empty(); ++i) out += other.text();
      return marked_as(other, std::move(out));
    }
    if (other.is(Kind::list)) {
      const auto& items = other.list()->items;
      charge(items.size() * times);
      std::vector<Value> out;
      for (size_t i = 0; i < times && !items.empty(); ++i) out.insert(out.end(), items.begin(), items.end());
      return other.list()->is_tuple ? make_tuple(std::move(out)) : make_list(std::move(out));
    }
  }
  fail("'{}' between {} and {} has no meaning", op, type_name(a), type_name(b));
}

bool Runtime::contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::undefined:
      return false;
    case Kind::text: {
      SINTER_CHECK(item.is(Kind::text), "'in' looks for a {} inside a text; expected a text", type_name(item));
      charge(container.text().size() * (item.text().size() + 4) / 256);
      return container.text().find(item.text()) != std::string::npos;
    }
    case Kind::dict:
      return container.dict()->find(item) != nullptr;
    case Kind::list:
    case Kind::iterator: {
      for (const Value& candidate : iterate(container)) {
        if (equal(candidate, item, meter)) return true;
      }
      return false;
    }
    default:
      fail("'in' looks inside a {}; expected a text, list or dict", type_name(container));
  }
}

std::vector<Value> Runtime::iterate(const Value& value) {
  std::vector<Value> items;
  switch (value.kind()) {
    case Kind::undefined:
      return items;
    case Kind::list:
      items = value.list()->items;
      break;
    case Kind::text:
      charge(value.text().size());
      each_code_point(value.text(), [&](std::string_view c) { items.emplace_back(c); });
      break;
    case Kind::dict:
      for (const auto& [key, unused] : value.dict()->items()) items.push_back(key);
      break;
    case Kind::iterator:
      items = std::exchange(value.iterator()->items, {});
      break;
    default:
      fail("a {} cannot be iterated over", type_name(value));
  }
  charge(items.size());
  return items;
}

int64_t Runtime::length(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
      return 0;
    case Kind::text:
      charge_text(value.text().size());
      return static_cast<int64_t>(num_code_points(value.text()));
    case Kind::list:
      return static_cast<int64_t>(value.list()->items.size());
    case Kind::dict:
      return static_cast<int64_t>(value.dict()->items().size());
    case Kind::iterator:
      return static_cast<int64_t>(value.iterator()->items.size());
    case Kind::loop:
      return static_cast<int64_t>(value.loop()->items->items.size());
    default:
      fail("a {} has no length", type_name(value));
  }
}

Value Runtime::filter(std::string_view name, const Value& input, Arguments& arguments) {
  auto found = filter_table().find(name);
  if (found == filter_table().end()) {
    std::vector<std::string> names;
    for (const auto& [known, unused] : filter_table()) names.emplace_back(known);
    fail("unknown filter '{}'{}", name, base::did_you_mean(name, names));
  }
  charge(1);
  return found->second(*this, input, arguments);
}

bool Runtime::test(std::string_view name, const Value& input, Arguments& arguments) {
  auto found = test_table().find(name);
  if (found == test_table().end()) {
    std::vector<std::string> names;
    for (const auto& [known, unused] : test_table()) names.emplace_back(known);
    fail("unknown test '{}'{}", name, base::did_you_mean(name, names));
  }
  charge(1);
  return found->second(*this, input, arguments);
}

const Value* ArgumentReader::find(std::string_view name) {
  size_t position = position_++;
  const Value* found = nullptr;
  for (const auto& [given, value] : arguments_.named) {
    if (given != name) continue;
    found = &value;
    ++num_named_;
  }
  if (position >= arguments_.positional.size()) return found;
  SINTER_CHECK(!found, "{} gets its argument '{}' twice", what_, name);
  return &arguments_.positional[position];
}

Value ArgumentReader::get(std::string_view name, Value standard) {
  const Value* found = find(name);
  return found ? *found : standard;
}

Value ArgumentReader::require(std::string_view name) {
  const Value* found = find(name);
  SINTER_CHECK(found, "{} needs the argument '{}'", what_, name);
  return *found;
}

int64_t ArgumentReader::get_integer(std::string_view name, int64_t standard) {
  return to_integer(get(name, Value(standard)), fmt::format("{}: argument '{}'", what_, name));
}

std::string ArgumentReader::as_text(std::string_view name, const Value& value) const {
  SINTER_CHECK(value.is(Kind::text), "{}: argument '{}' is a {}; expected a text", what_, name, type_name(value));
  return value.text();
}

void ArgumentReader::finish() {
  SINTER_CHECK(arguments_.positional.size() <= position_, "{} takes at most {} arguments, {} were given", what_,
               position_, arguments_.positional.size());
  if (num_named_ == arguments_.named.size()) return;
  // Which one was not asked for is not recorded; all names together say enough.
  std::string names;
  for (const auto& [given, unused] : arguments_.named) names += (names.empty() ? "" : ", ") + given;
  fail("{} does not know one of the arguments {}", what_, names);
}

}  // namespace sinter::tokenizer::jinja
