#include "tokenizer/jinja/value.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace sinter::tokenizer::jinja {
namespace {

using base::fail;

constexpr size_t kMaxTupleKeyBytes = 1 << 16;  // nested tuples can share parts and be far larger than they look

// Equal keys give equal texts: 1, 1.0 and True are one key in Python.
std::string key_text(const Value& key) {
  switch (key.kind()) {
    case Kind::text:
      return "s" + key.text();
    case Kind::none:
      return "0";
    case Kind::undefined:
      return "u";
    case Kind::boolean:
    case Kind::integer:
      return "n" + std::to_string(key.integer());
    case Kind::floating: {
      double d = key.number();
      if (d == std::floor(d) && std::abs(d) < 9e18) return "n" + std::to_string(static_cast<int64_t>(d));
      return "f" + format_float(d);
    }
    case Kind::list:
      if (key.list()->is_tuple) {
        std::string text = "t";
        for (const Value& item : key.list()->items) {
          std::string part = key_text(item);
          text += std::to_string(part.size()) + ":" + part;
          SINTER_CHECK(text.size() <= kMaxTupleKeyBytes, "a tuple used as the key of a dict is too large");
        }
        return text;
      }
      [[fallthrough]];
    default:
      fail("a {} cannot be the key of a dict", type_name(key));
  }
}

template <class Json>
Value convert(const Json& json, int depth) {
  SINTER_CHECK(depth < kMaxNesting, "the JSON given to the template nests deeper than {} levels", kMaxNesting);
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value(json.template get<bool>());
    case Json::value_t::number_integer:
      return Value(json.template get<int64_t>());
    case Json::value_t::number_unsigned: {
      auto number = json.template get<uint64_t>();
      if (number > static_cast<uint64_t>(INT64_MAX)) return Value(static_cast<double>(number));
      return Value(static_cast<int64_t>(number));
    }
    case Json::value_t::number_float:
      return Value(json.template get<double>());
    case Json::value_t::string:
      return Value(json.template get<std::string>());
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const auto& item : json) items.push_back(convert(item, depth + 1));
      return make_list(std::move(items));
    }
    case Json::value_t::object: {
      auto dict = make_dict();
      for (const auto& [key, item] : json.items()) {
        Value value = convert(item, depth + 1);
        dict->nesting = std::max(dict->nesting, nesting_around(value));
        dict->set(Value(key), std::move(value));
      }
      return dict;
    }
    default:
      return Value::none();
  }
}

int nesting_of(const std::vector<Value>& items) {
  int nesting = 1;
  for (const Value& item : items) nesting = std::max(nesting, nesting_around(item));
  return nesting;
}

int compare_numbers(const Value& a, const Value& b) {
  if (a.is_whole() && b.is_whole()) return a.integer() < b.integer() ? -1 : a.integer() > b.integer();
  return a.number() < b.number() ? -1 : a.number() > b.number();
}

}  // namespace

const Object* Value::object() const {
  return std::visit(
      [](const auto& held) -> const Object* {
        if constexpr (requires { static_cast<const Object*>(held.get()); }) {
          return held.get();
        } else {
          return nullptr;
        }
      },
      data_);
}

const Value* Dict::find(const Value& key) const {
  auto found = index_.find(key_text(key));
  return found == index_.end() ? nullptr : &items_[found->second].second;
}

const Value* Dict::find(std::string_view key) const {
  auto found = index_.find("s" + std::string(key));
  return found == index_.end() ? nullptr : &items_[found->second].second;
}

void Dict::set(const Value& key, Value value) {
  auto [place, is_new] = index_.emplace(key_text(key), items_.size());
  if (is_new) {
    items_.emplace_back(key, std::move(value));
  } else {
    items_[place->second].second = std::move(value);
  }
}

bool Dict::erase(const Value& key) {
  auto found = index_.find(key_text(key));
  if (found == index_.end()) return false;
  size_t place = found->second;
  index_.erase(found);
  items_.erase(items_.begin() + static_cast<ptrdiff_t>(place));
  for (auto& [unused, at] : index_) at -= at > place;
  return true;
}

void Dict::clear() {
  items_.clear();
  index_.clear();
}

int nesting_around(const Value& value) {
  const Object* object = value.object();
  int nesting = object ? object->nesting + 1 : 1;
  SINTER_CHECK(nesting <= kMaxNesting, "lists and dicts nest deeper than {} levels", kMaxNesting);
  return nesting;
}

Value make_list(std::vector<Value> items) {
  auto list = std::make_shared<List>();
  list->nesting = nesting_of(items);
  list->items = std::move(items);
  return list;
}

Value make_tuple(std::vector<Value> items) {
  Value value = make_list(std::move(items));
  value.list()->is_tuple = true;
  return value;
}

Value make_iterator(std::vector<Value> items) {
  auto iterator = std::make_shared<Iterator>();
  iterator->nesting = nesting_of(items);
  iterator->items = std::move(items);
  return iterator;
}

std::shared_ptr<Dict> make_dict() { return std::make_shared<Dict>(); }

Value make_callable(std::string name, std::function<Value(Runtime&, Arguments&)> call) {
  auto callable = std::make_shared<Callable>();
  callable->name = std::move(name);
  callable->call = std::move(call);
  return callable;
}

Value from_json(const nlohmann::json& json) { return convert(json, 0); }
Value from_json(const nlohmann::ordered_json& json) { return convert(json, 0); }

std::string_view type_name(const Value& value) {
  static constexpr std::array<std::string_view, 12> kNames{"Undefined", "NoneType",  "bool",        "int",
                                                           "float",     "str",       "list",        "dict",
                                                           "generator", "Namespace", "LoopContext", "function"};
  if (value.is(Kind::list) && value.list()->is_tuple) return "tuple";
  return kNames[static_cast<size_t>(value.kind())];
}

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
    case Kind::integer:
      return value.integer() != 0;
    case Kind::floating:
      return value.number() != 0;
    case Kind::text:
      return !value.text().empty();
    case Kind::list:
      return !value.list()->items.empty();
    case Kind::dict:
      return !value.dict()->items().empty();
    default:
      return true;
  }
}

void Meter::spend(size_t units) {
  work_ += units;
  SINTER_CHECK(work_ <= max_work_ && units <= max_work_, "the template does more than {} steps of work and was stopped",
               max_work_);
}

Meter::Level::Level(Meter& meter) : meter_(meter) {
  meter.spend(1);
  SINTER_CHECK(meter.depth_ < kMaxNesting, "lists and dicts nest deeper than {} levels", kMaxNesting);
  ++meter.depth_;
}

bool equal(const Value& a, const Value& b, Meter& meter) {
  Meter::Level level(meter);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0 && !std::isnan(a.number() + b.number());
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::text:
      meter.spend(a.text().size() / 64);
      return a.text() == b.text();
    case Kind::list: {
      const auto &x = a.list()->items, &y = b.list()->items;
      if (x.size() != y.size() || a.list()->is_tuple != b.list()->is_tuple) return false;
      for (size_t i = 0; i < x.size(); ++i) {
        if (!equal(x[i], y[i], meter)) return false;
      }
      return true;
    }
    case Kind::dict: {
      if (a.dict()->items().size() != b.dict()->items().size()) return false;
      for (const auto& [key, value] : a.dict()->items()) {
        const Value* other = b.dict()->find(key);
        if (!other || !equal(value, *other, meter)) return false;
      }
      return true;
    }
    default:
      return a.object() == b.object();
  }
}

int compare(const Value& a, const Value& b, Meter& meter) {
  Meter::Level level(meter);
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is(Kind::text) && b.is(Kind::text)) return a.text().compare(b.text());  // UTF-8 sorts as code points do
  if (a.is(Kind::list) && b.is(Kind::list) && a.list()->is_tuple == b.list()->is_tuple) {
    const auto &x = a.list()->items, &y = b.list()->items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i], meter)) return compare(x[i], y[i], meter);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size();
  }
  for (const Value* side : {&a, &b}) {
    if (side->is(Kind::undefined)) {
      const auto& hint = side->undefined_hint().hint;
      fail("{}, but it is compared", hint ? *hint : "a value is undefined");
    }
  }
  fail("'<' or '>' between {} and {} has no meaning", type_name(a), type_name(b));
}

}  // namespace sinter::tokenizer::jinja
