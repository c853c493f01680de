// The functions that every template sees.
#include <algorithm>
#include <ctime>

#include "tokenizer/jinja/runtime.h"

namespace sinter::tokenizer::jinja {
namespace {

using base::fail;

constexpr int64_t kMaxRange = 100'000;  // Jinja's sandbox has the same limit

Value range(Runtime& runtime, Arguments& arguments) {
  size_t count = arguments.positional.size();
  SINTER_CHECK(count >= 1 && count <= 3 && arguments.named.empty(), "range takes 1 to 3 whole numbers");
  int64_t bounds[3] = {0, 0, 1};
  if (count == 1) {
    bounds[1] = to_integer(arguments.positional[0], "range's argument");
  } else {
    for (size_t i = 0; i < count; ++i) bounds[i] = to_integer(arguments.positional[i], "range's argument");
  }
  auto [begin, end, step] = bounds;
  SINTER_CHECK(step != 0, "range's step is 0");
  std::vector<Value> items;
  for (__int128 i = begin; step > 0 ? i < end : i > end; i += step) {
    SINTER_CHECK(items.size() < kMaxRange, "range gives more than {} numbers", kMaxRange);
    items.emplace_back(static_cast<int64_t>(i));
  }
  runtime.charge(items.size());
  return make_list(std::move(items));
}

// namespace(...) and dict(...) take the same arguments: dicts or pairs, then names.
void fill(Runtime& runtime, Dict& dict, const Arguments& arguments, std::string_view what) {
  auto add = [&](const Value& key, const Value& value) {
    dict.nesting = std::max({dict.nesting, nesting_around(key), nesting_around(value)});
    dict.set(key, value);
  };
  for (const Value& source : arguments.positional) {
    if (source.is(Kind::dict)) {
      for (const auto& [key, value] : source.dict()->items()) add(key, value);
      continue;
    }
    for (const Value& pair : runtime.iterate(source)) {
      std::vector<Value> parts = runtime.iterate(pair);
      SINTER_CHECK(parts.size() == 2, "{} takes pairs, found {} values", what, parts.size());
      add(parts[0], parts[1]);
    }
  }
  for (const auto& [name, value] : arguments.named) add(Value(name), value);
  runtime.charge(dict.items().size());
}

Value make_namespace(Runtime& runtime, Arguments& arguments) {
  auto result = std::make_shared<Namespace>();
  runtime.keep(result);
  fill(runtime, result->attributes, arguments, "namespace");
  return result;
}

Value dict(Runtime& runtime, Arguments& arguments) {
  auto result = make_dict();
  fill(runtime, *result, arguments, "dict");
  return result;
}

Value raise_exception(Runtime& runtime, Arguments& arguments) {
  ArgumentReader reader(arguments, "raise_exception");
  std::string message = to_text(reader.require("message"), runtime.meter);
  reader.finish();
  fail("{}", message);
}

Value strftime_now(Runtime& runtime, Arguments& arguments) {
  ArgumentReader reader(arguments, "strftime_now");
  std::string format = reader.get_text("format", "");
  reader.finish();
  if (format.empty()) return Value("");
  SINTER_CHECK(format.size() <= 256, "strftime_now: the format has {} bytes; at most 256 are accepted", format.size());
  auto seconds = static_cast<std::time_t>(runtime.now);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char buffer[4096];
  size_t size = std::strftime(buffer, sizeof buffer, format.c_str(), &parts);
  return std::string(buffer, size);
}

// joiner(', ') gives '' the first time it is called and ', ' afterwards.
Value joiner(Runtime&, Arguments& arguments) {
  ArgumentReader reader(arguments, "joiner");
  Value separator = reader.get("sep", Value(", "));
  reader.finish();
  auto used = std::make_shared<bool>(false);
  Value result = make_callable(
      "joiner", [separator, used](Runtime&, Arguments&) { return std::exchange(*used, true) ? separator : Value(""); });
  result.callable()->nesting = nesting_around(separator);
  return result;
}

}  // namespace

std::shared_ptr<Dict> make_globals() {
  auto globals = make_dict();
  globals->set("range", make_callable("range", range));
  globals->set("namespace", make_callable("namespace", make_namespace));
  globals->set("dict", make_callable("dict", dict));
  globals->set("raise_exception", make_callable("raise_exception", raise_exception));
  globals->set("strftime_now", make_callable("strftime_now", strftime_now));
  globals->set("joiner", make_callable("joiner", joiner));
  return globals;
}

}  // namespace sinter::tokenizer::jinja
