// Filters on lists, dicts and whatever else a for loop takes.
#include <algorithm>
#include <charconv>

#include "tokenizer/jinja/runtime.h"

namespace sinter::tokenizer::jinja {
namespace {

using base::fail;

// The attribute "a.b.0" of an item, as the filters' `attribute` arguments name it.
Value item_attribute(Runtime& runtime, Value item, const Value& path) {
  if (path.is_whole()) return runtime.item(item, path);
  SINTER_CHECK(path.is(Kind::text), "an attribute is named by a text or a number, found {}", short_repr(path));
  std::string_view rest = path.text();
  for (;;) {
    size_t dot = rest.find('.');
    std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    auto result = std::from_chars(part.data(), part.data() + part.size(), index);
    bool is_index = !part.empty() && result.ec == std::errc() && result.ptr == part.data() + part.size();
    item = runtime.item(item, is_index ? Value(index) : Value(part));
    if (dot == std::string_view::npos) return item;
    rest.remove_prefix(dot + 1);
  }
}

Value fold_case(const Value& value, bool is_sensitive) {
  return value.is(Kind::text) && !is_sensitive ? Value(to_lower(value.text())) : value;
}

// Sorts stably by keys computed once.
std::vector<Value> sort_by(Runtime& runtime, std::vector<Value> items, const std::vector<Value>& keys,
                           bool is_reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return is_reverse ? compare(keys[b], keys[a], runtime.meter) < 0 : compare(keys[a], keys[b], runtime.meter) < 0;
  });
  std::vector<Value> sorted;
  for (size_t i : order) sorted.push_back(items[i]);
  return sorted;
}

Value length(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader(arguments, "filter 'length'").finish();
  return runtime.length(input);
}

Value first(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader(arguments, "filter 'first'").finish();
  std::vector<Value> items = runtime.iterate(input);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items.front();
}

Value last(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader(arguments, "filter 'last'").finish();
  std::vector<Value> items = runtime.iterate(input);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value as_list(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader(arguments, "filter 'list'").finish();
  return make_list(runtime.iterate(input));
}

Value reverse(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader(arguments, "filter 'reverse'").finish();
  std::vector<Value> items = runtime.iterate(input);
  std::reverse(items.begin(), items.end());
  if (!input.is(Kind::text)) return make_iterator(std::move(items));
  std::string out;
  for (const Value& item : items) out += item.text();
  return out;
}

Value join(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'join'");
  std::string separator = to_text(reader.get("d", Value("")), runtime.meter);
  Value attribute = reader.get("attribute");
  reader.finish();
  std::string out;
  bool is_first = true;
  for (const Value& item : runtime.iterate(input)) {
    if (!is_first) out += separator;
    is_first = false;
    out += to_text(attribute.is(Kind::none) ? item : item_attribute(runtime, item, attribute), runtime.meter);
    runtime.charge_text(separator.size());
    runtime.check_size(out.size());
  }
  runtime.charge_text(out.size());
  return out;
}

// The arguments after the first `count`, for the filter or test that the first names.
Arguments rest_of(const Arguments& arguments, size_t count) {
  Arguments rest{{}, arguments.named};
  for (size_t i = count; i < arguments.positional.size(); ++i) rest.positional.push_back(arguments.positional[i]);
  return rest;
}

std::string name_argument(const Arguments& arguments, size_t at, std::string_view what) {
  SINTER_CHECK(arguments.positional.size() > at && arguments.positional[at].is(Kind::text), "{} needs a name as a text",
               what);
  return arguments.positional[at].text();
}

Value map(Runtime& runtime, const Value& input, const Arguments& arguments) {
  std::vector<Value> out;
  if (!is_true(input)) return make_iterator({});  // none and other empty values are taken for empty lists here
  bool by_attribute =
      arguments.positional.empty() && !arguments.named.empty() && arguments.named[0].first == "attribute";
  if (by_attribute) {
    Value attribute = arguments.named[0].second, standard;
    if (arguments.named.size() > 1 && arguments.named[1].first == "default") standard = arguments.named[1].second;
    for (const Value& item : runtime.iterate(input)) {
      Value value = item_attribute(runtime, item, attribute);
      out.push_back(value.is(Kind::undefined) && !standard.is(Kind::undefined) ? standard : value);
    }
    return make_iterator(std::move(out));
  }
  std::string name = name_argument(arguments, 0, "filter 'map'");
  for (const Value& item : runtime.iterate(input)) {
    Arguments rest = rest_of(arguments, 1);
    out.push_back(runtime.filter(name, item, rest));
  }
  return make_iterator(std::move(out));
}

// select, reject, selectattr, rejectattr: items for which the test gives kWanted.
template <bool kWanted, bool kByAttribute>
Value select(Runtime& runtime, const Value& input, const Arguments& arguments) {
  std::vector<Value> out;
  if (!is_true(input)) return make_iterator({});
  size_t num_own = kByAttribute ? 1 : 0;
  SINTER_CHECK(arguments.positional.size() >= num_own, "selectattr and rejectattr need an attribute");
  bool has_test = arguments.positional.size() > num_own;
  std::string name = has_test ? name_argument(arguments, num_own, "a test in select or reject") : "";
  for (const Value& item : runtime.iterate(input)) {
    Value value = kByAttribute ? item_attribute(runtime, item, arguments.positional[0]) : item;
    Arguments rest = rest_of(arguments, num_own + 1);
    if ((has_test ? runtime.test(name, value, rest) : is_true(value)) == kWanted) out.push_back(item);
  }
  return make_iterator(std::move(out));
}

Value items_of(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader(arguments, "filter 'items'").finish();
  if (input.is(Kind::undefined)) return make_iterator({});
  SINTER_CHECK(input.is(Kind::dict), "filter 'items' takes a dict, found {}", short_repr(input));
  Arguments none;
  return make_iterator(runtime.iterate(runtime.call(bind_method(input, "items"), none)));
}

Value sort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'sort'");
  bool is_reverse = reader.get_flag("reverse", false), is_sensitive = reader.get_flag("case_sensitive", false);
  Value attribute = reader.get("attribute");
  reader.finish();
  std::vector<Value> items = runtime.iterate(input), keys;
  for (const Value& item : items) {
    if (!attribute.is(Kind::text) || attribute.text().find(',') == std::string::npos) {
      keys.push_back(
          fold_case(attribute.is(Kind::none) ? item : item_attribute(runtime, item, attribute), is_sensitive));
      continue;
    }
    std::vector<Value> parts;  // "a,b": by a, then by b
    for (std::string_view rest = attribute.text();;) {
      size_t comma = rest.find(',');
      parts.push_back(fold_case(item_attribute(runtime, item, Value(rest.substr(0, comma))), is_sensitive));
      if (comma == std::string_view::npos) break;
      rest.remove_prefix(comma + 1);
    }
    keys.push_back(make_tuple(std::move(parts)));
  }
  return make_list(sort_by(runtime, std::move(items), keys, is_reverse));
}

Value sort_dict(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'dictsort'");
  bool is_sensitive = reader.get_flag("case_sensitive", false);
  std::string by = reader.get_text("by", "key");
  bool is_reverse = reader.get_flag("reverse", false);
  reader.finish();
  SINTER_CHECK(by == "key" || by == "value", "filter 'dictsort': by '{}'; expected key or value", by);
  check_defined(input, "sorted");
  SINTER_CHECK(input.is(Kind::dict), "filter 'dictsort' takes a dict, found {}", short_repr(input));
  std::vector<Value> items, keys;
  for (const auto& [key, value] : input.dict()->items()) {
    items.push_back(make_tuple({key, value}));
    keys.push_back(fold_case(by == "key" ? key : value, is_sensitive));
  }
  runtime.charge(items.size());
  return make_list(sort_by(runtime, std::move(items), keys, is_reverse));
}

Value unique(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'unique'");
  bool is_sensitive = reader.get_flag("case_sensitive", false);
  Value attribute = reader.get("attribute");
  reader.finish();
  Dict seen;
  std::vector<Value> out;
  for (const Value& item : runtime.iterate(input)) {
    Value key = fold_case(attribute.is(Kind::none) ? item : item_attribute(runtime, item, attribute), is_sensitive);
    if (seen.find(key)) continue;
    seen.set(key, Value::none());
    out.push_back(item);
  }
  return make_iterator(std::move(out));
}

template <bool kMax>
Value extreme(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, kMax ? "filter 'max'" : "filter 'min'");
  bool is_sensitive = reader.get_flag("case_sensitive", false);
  Value attribute = reader.get("attribute");
  reader.finish();
  std::vector<Value> items = runtime.iterate(input);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  Value best, best_key;
  for (size_t i = 0; i < items.size(); ++i) {
    Value key =
        fold_case(attribute.is(Kind::none) ? items[i] : item_attribute(runtime, items[i], attribute), is_sensitive);
    int order = i == 0 ? 0 : compare(key, best_key, runtime.meter);
    if (i > 0 && (kMax ? order <= 0 : order >= 0)) continue;
    best = items[i];
    best_key = key;
  }
  return best;
}

Value sum(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'sum'");
  Value attribute = reader.get("attribute"), total = reader.get("start", Value(0));
  reader.finish();
  for (const Value& item : runtime.iterate(input)) {
    total = runtime.binary("+", total, attribute.is(Kind::none) ? item : item_attribute(runtime, item, attribute));
  }
  return total;
}

Value batch(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'batch'");
  int64_t size = reader.get_integer("linecount", 0);
  Value fill = reader.get("fill_with");
  reader.finish();
  SINTER_CHECK(size > 0 && size <= 1'000'000, "filter 'batch' takes a size of 1 or more, found {}", size);
  std::vector<Value> out, row;
  for (Value& item : runtime.iterate(input)) {
    row.push_back(std::move(item));
    if (static_cast<int64_t>(row.size()) == size) out.push_back(make_list(std::exchange(row, {})));
  }
  if (!row.empty()) {
    runtime.charge(static_cast<size_t>(size));
    if (!fill.is(Kind::none)) row.resize(static_cast<size_t>(size), fill);
    out.push_back(make_list(std::move(row)));
  }
  return make_iterator(std::move(out));
}

Value slices(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'slice'");
  int64_t count = reader.get_integer("slices", 0);
  Value fill = reader.get("fill_with");
  reader.finish();
  SINTER_CHECK(count > 0 && count <= 1'000'000, "filter 'slice' takes a count of 1 or more, found {}", count);
  runtime.charge(static_cast<size_t>(count));
  std::vector<Value> items = runtime.iterate(input), out;
  auto size = static_cast<int64_t>(items.size());
  auto next = items.begin();
  for (int64_t i = 0; i < count; ++i) {
    int64_t width = size / count + (i < size % count);
    std::vector<Value> part(next, next + width);
    next += width;
    if (!fill.is(Kind::none) && i >= size % count) part.push_back(fill);
    out.push_back(make_list(std::move(part)));
  }
  return make_iterator(std::move(out));
}

Value group_by(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'groupby'");
  Value attribute = reader.require("attribute"), standard = reader.get("default");
  bool is_sensitive = reader.get_flag("case_sensitive", false);
  reader.finish();
  std::vector<Value> pairs, keys;  // (shown key, item)
  for (const Value& item : runtime.iterate(input)) {
    Value key = item_attribute(runtime, item, attribute);
    if (key.is(Kind::undefined) && !standard.is(Kind::none)) key = standard;
    pairs.push_back(make_tuple({key, item}));
    keys.push_back(fold_case(key, is_sensitive));
  }
  std::vector<Value> out, members;
  Value group_key;
  auto end_group = [&] {
    if (members.empty()) return;
    Value group = make_tuple({group_key, make_list(std::exchange(members, {}))});
    group.list()->is_group = true;
    out.push_back(group);
  };
  for (const Value& pair : sort_by(runtime, std::move(pairs), keys, false)) {
    const Value& key = pair.list()->items[0];
    if (!members.empty() && !equal(fold_case(key, is_sensitive), fold_case(group_key, is_sensitive), runtime.meter)) {
      end_group();
    }
    if (members.empty()) group_key = key;
    members.push_back(pair.list()->items[1]);
  }
  end_group();
  return make_list(std::move(out));
}

Value attribute_of(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'attr'");
  std::string name = reader.get_text("name", "");
  reader.finish();
  return runtime.attribute(input, name);
}

}  // namespace

void add_sequence_filters(FilterTable& table) {
  table.insert({
      {"length", length},
      {"count", length},
      {"first", first},
      {"last", last},
      {"list", as_list},
      {"reverse", reverse},
      {"join", join},
      {"map", map},
      {"select", select<true, false>},
      {"reject", select<false, false>},
      {"selectattr", select<true, true>},
      {"rejectattr", select<false, true>},
      {"items", items_of},
      {"sort", sort},
      {"dictsort", sort_dict},
      {"unique", unique},
      {"min", extreme<false>},
      {"max", extreme<true>},
      {"sum", sum},
      {"batch", batch},
      {"slice", slices},
      {"groupby", group_by},
      {"attr", attribute_of},
  });
}

const FilterTable& filter_table() {
  static const FilterTable table = [] {
    FilterTable filled;
    add_text_filters(filled);
    add_sequence_filters(filled);
    return filled;
  }();
  return table;
}

}  // namespace sinter::tokenizer::jinja
