// The methods of list, dict and loop that templates call, with Python's behaviour, and how methods are found.
#include <algorithm>

#include "tokenizer/jinja/runtime.h"

namespace sinter::tokenizer::jinja {
namespace {

using base::fail;

// ---- dict ----------------------------------------------------------------------------------------------------------

Value dict_get(Runtime&, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "get");
  Value key = reader.require("key"), standard = reader.get("default");
  reader.finish();
  const Value* found = self.dict()->find(key);
  return found ? *found : standard;
}

Value dict_items(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "items").finish();
  runtime.charge(self.dict()->items().size());
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict()->items()) items.push_back(make_tuple({key, value}));
  return make_list(std::move(items));
}

Value dict_keys(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "keys").finish();
  return make_list(runtime.iterate(self));
}

Value dict_values(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "values").finish();
  runtime.charge(self.dict()->items().size());
  std::vector<Value> values;
  for (const auto& [key, value] : self.dict()->items()) values.push_back(value);
  return make_list(std::move(values));
}

Value dict_copy(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "copy").finish();
  runtime.charge(self.dict()->items().size());
  auto copy = make_dict();
  for (const auto& [key, value] : self.dict()->items()) copy->set(key, value);
  copy->nesting = self.dict()->nesting;
  return copy;
}

Value dict_pop(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "pop");
  Value key = reader.require("key"), standard = reader.get("default", Value());
  reader.finish();
  const Value* found = self.dict()->find(key);
  SINTER_CHECK(found || !standard.is(Kind::undefined), "pop: the dict has no key {}", short_repr(key));
  if (!found) return standard;
  Value value = *found;
  runtime.charge(self.dict()->items().size());
  self.dict()->erase(key);
  return value;
}

Value dict_update(Runtime& runtime, const Value& self, const Arguments& arguments) {
  runtime.keep(self.dict());
  for (const Value& other : arguments.positional) {
    SINTER_CHECK(other.is(Kind::dict), "update takes a dict, found a {}", type_name(other));
    runtime.charge(other.dict()->items().size());
    auto items = other.dict()->items();  // a copy: d.update(d)
    for (const auto& [key, value] : items) self.dict()->set(key, value);
  }
  for (const auto& [key, value] : arguments.named) self.dict()->set(Value(key), value);
  return Value::none();
}

Value dict_set_default(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "setdefault");
  Value key = reader.require("key"), standard = reader.get("default");
  reader.finish();
  runtime.keep(self.dict());
  if (const Value* found = self.dict()->find(key)) return *found;
  self.dict()->set(key, standard);
  return standard;
}

Value dict_clear(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "clear").finish();
  runtime.keep(self.dict());
  self.dict()->clear();
  return Value::none();
}

const MethodTable& dict_methods() {
  static const MethodTable table{
      {"get", dict_get},     {"items", dict_items}, {"keys", dict_keys},     {"values", dict_values},
      {"copy", dict_copy},   {"pop", dict_pop},     {"update", dict_update}, {"setdefault", dict_set_default},
      {"clear", dict_clear},
  };
  return table;
}

// ---- list ----------------------------------------------------------------------------------------------------------

List& mutable_list(Runtime& runtime, const Value& self) {
  SINTER_CHECK(!self.list()->is_tuple, "a tuple cannot be changed");
  runtime.keep(self.list());
  return *self.list();
}

Value list_append(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "append");
  Value item = reader.require("object");
  reader.finish();
  runtime.charge(1);
  mutable_list(runtime, self).items.push_back(std::move(item));
  return Value::none();
}

Value list_extend(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "extend");
  std::vector<Value> items = runtime.iterate(reader.require("iterable"));
  reader.finish();
  auto& all = mutable_list(runtime, self).items;
  all.insert(all.end(), items.begin(), items.end());
  return Value::none();
}

Value list_insert(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "insert");
  int64_t at = reader.get_integer("index", 0);
  Value item = reader.require("object");
  reader.finish();
  auto& items = mutable_list(runtime, self).items;
  runtime.charge(items.size() + 1);
  auto size = static_cast<int64_t>(items.size());
  at = std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
  items.insert(items.begin() + at, std::move(item));
  return Value::none();
}

Value list_pop(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "pop");
  int64_t at = reader.get_integer("index", -1);
  reader.finish();
  auto& items = mutable_list(runtime, self).items;
  auto size = static_cast<int64_t>(items.size());
  if (at < 0) at += size;
  SINTER_CHECK(at >= 0 && at < size, "pop: the list has {} items and none at {}", size, at);
  runtime.charge(static_cast<size_t>(size - at));
  Value item = items[static_cast<size_t>(at)];
  items.erase(items.begin() + at);
  return item;
}

Value list_index(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "index");
  Value item = reader.require("value");
  reader.finish();
  const auto& items = self.list()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (equal(items[i], item, runtime.meter)) return i;
  }
  fail("index: the list has no {}", short_repr(item));
}

Value list_count(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "count");
  Value item = reader.require("value");
  reader.finish();
  const auto& items = self.list()->items;
  return std::count_if(items.begin(), items.end(), [&](const Value& v) { return equal(v, item, runtime.meter); });
}

Value list_remove(Runtime& runtime, const Value& self, const Arguments& arguments) {
  int64_t at = list_index(runtime, self, arguments).integer();
  auto& items = mutable_list(runtime, self).items;
  runtime.charge(items.size());
  items.erase(items.begin() + at);
  return Value::none();
}

Value list_reverse(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "reverse").finish();
  auto& items = mutable_list(runtime, self).items;
  runtime.charge(items.size());
  std::reverse(items.begin(), items.end());
  return Value::none();
}

Value list_copy(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "copy").finish();
  return make_list(runtime.iterate(self));
}

const MethodTable& list_methods() {
  static const MethodTable table{
      {"append", list_append}, {"extend", list_extend},   {"insert", list_insert},
      {"pop", list_pop},       {"index", list_index},     {"count", list_count},
      {"remove", list_remove}, {"reverse", list_reverse}, {"copy", list_copy},
  };
  return table;
}

// ---- loop ----------------------------------------------------------------------------------------------------------

Value loop_cycle(Runtime&, const Value& self, const Arguments& arguments) {
  SINTER_CHECK(!arguments.positional.empty(), "loop.cycle needs at least one value");
  return arguments.positional[self.loop()->index % arguments.positional.size()];
}

Value loop_changed(Runtime& runtime, const Value& self, const Arguments& arguments) {
  Loop& loop = *self.loop();
  Value now = make_tuple(arguments.positional);
  bool is_changed = !loop.has_changed || !equal(loop.last_changed, now, runtime.meter);
  runtime.keep(self.loop());
  loop.last_changed = now;
  loop.has_changed = true;
  return is_changed;
}

const MethodTable& loop_methods() {
  static const MethodTable table{{"cycle", loop_cycle}, {"changed", loop_changed}};
  return table;
}

}  // namespace

Value bind_method(const Value& self, std::string_view name) {
  static const MethodTable kNone;
  const MethodTable& table = self.is(Kind::text)   ? text_methods()
                             : self.is(Kind::dict) ? dict_methods()
                             : self.is(Kind::list) ? list_methods()
                             : self.is(Kind::loop) ? loop_methods()
                                                   : kNone;
  auto found = table.find(name);
  if (found == table.end()) return Value();
  Value bound =
      make_callable(std::string(name), [self, method = found->second](Runtime& runtime, Arguments& arguments) {
        return method(runtime, self, arguments);
      });
  bound.callable()->nesting = nesting_around(self);
  return bound;
}

}  // namespace sinter::tokenizer::jinja
