// The values of the template language: Python's, as far as chat templates see them.
//
// A Value is small and cheap to copy: text and containers are shared. Text is UTF-8; lengths, indices and slices count
// code points. Dicts keep the order of insertion.
#pragma once
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace sinter::tokenizer::jinja {

class Value;
class Runtime;

// Containers nest at most this deep; the limit keeps printing, comparing and freeing within the stack.
inline constexpr int kMaxNesting = 400;

// Anything that lives on the heap and can hold values.
struct Object {
  virtual ~Object() = default;
  virtual void clear() {}  // drops the held values, to break cycles at the end of a rendering
  int nesting = 1;         // levels of containers from here down when it was built
  bool is_kept = false;    // held by Runtime::keep
};

struct List;
struct Dict;
struct Iterator;
struct Namespace;
struct Loop;
struct Callable;

enum class Kind { undefined, none, boolean, integer, floating, text, list, dict, iterator, name_space, loop, callable };

class Value {
 public:
  using Text = std::shared_ptr<const std::string>;
  struct Undefined {
    Text hint;  // what was missing, for the error when it is used after all; may be null
  };

  Value() = default;  // undefined
  static Value none() { return Value(Data(std::in_place_type<NoneTag>)); }
  // Text marked as safe HTML by the filters `safe` and `escape`: adding a plain text to it escapes that text.
  static Value markup(std::string value) {
    return Value(Data(Shared{std::make_shared<const std::string>(std::move(value)), true}));
  }
  static Value undefined(std::string hint) {
    return Value(Data(Undefined{std::make_shared<const std::string>(std::move(hint))}));
  }
  template <std::same_as<bool> B>
  Value(B value) : data_(value) {}
  template <std::integral I>
  requires(!std::same_as<I, bool>) Value(I value) : data_(static_cast<int64_t>(value)) {}
  Value(double value) : data_(value) {}
  Value(std::string value) : data_(Shared{std::make_shared<const std::string>(std::move(value)), false}) {}
  Value(std::string_view value) : Value(std::string(value)) {}
  Value(const char* value) : Value(std::string(value)) {}
  Value(std::shared_ptr<List> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Dict> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Iterator> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Namespace> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Loop> value) : data_(std::move(value)) {}
  Value(std::shared_ptr<Callable> value) : data_(std::move(value)) {}

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind k) const { return kind() == k; }
  bool is_number() const { return is(Kind::boolean) || is(Kind::integer) || is(Kind::floating); }
  bool is_whole() const { return is(Kind::boolean) || is(Kind::integer); }

  // Accessors; the kind must fit.
  bool boolean() const { return std::get<bool>(data_); }
  int64_t integer() const { return is(Kind::boolean) ? boolean() : std::get<int64_t>(data_); }
  double number() const { return is(Kind::floating) ? std::get<double>(data_) : static_cast<double>(integer()); }
  const std::string& text() const { return *std::get<Shared>(data_).text; }
  bool is_markup() const { return is(Kind::text) && std::get<Shared>(data_).is_markup; }
  const Undefined& undefined_hint() const { return std::get<Undefined>(data_); }
  const std::shared_ptr<List>& list() const { return std::get<std::shared_ptr<List>>(data_); }
  const std::shared_ptr<Dict>& dict() const { return std::get<std::shared_ptr<Dict>>(data_); }
  const std::shared_ptr<Iterator>& iterator() const { return std::get<std::shared_ptr<Iterator>>(data_); }
  const std::shared_ptr<Namespace>& name_space() const { return std::get<std::shared_ptr<Namespace>>(data_); }
  const std::shared_ptr<Loop>& loop() const { return std::get<std::shared_ptr<Loop>>(data_); }
  const std::shared_ptr<Callable>& callable() const { return std::get<std::shared_ptr<Callable>>(data_); }
  const Object* object() const;  // null for scalars and text

 private:
  struct NoneTag {};
  struct Shared {
    Text text;
    bool is_markup;
  };
  using Data = std::variant<Undefined, NoneTag, bool, int64_t, double, Shared, std::shared_ptr<List>,
                            std::shared_ptr<Dict>, std::shared_ptr<Iterator>, std::shared_ptr<Namespace>,
                            std::shared_ptr<Loop>, std::shared_ptr<Callable>>;
  explicit Value(Data data) : data_(std::move(data)) {}
  Data data_;
};

// A list, or a tuple, or the (grouper, list) pair of the filter groupby.
struct List : Object {
  std::vector<Value> items;
  bool is_tuple = false;
  bool is_group = false;
  void clear() override { items.clear(); }
};

struct Dict : Object {
  // Null when the key is missing. Throws Error when the key cannot be one (a list, a dict).
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  void set(const Value& key, Value value);
  bool erase(const Value& key);
  void clear() override;
  const std::vector<std::pair<Value, Value>>& items() const { return items_; }

 private:
  std::vector<std::pair<Value, Value>> items_;
  std::unordered_map<std::string, size_t> index_;  // key_text of each key to its place
};

// What Python's generators are: handed out once, true even when empty.
struct Iterator : Object {
  std::vector<Value> items;
  size_t next = 0;
  void clear() override { items.clear(); }
};

struct Namespace : Object {
  Dict attributes;
  void clear() override { attributes.clear(); }
};

// The variable `loop` of one for statement.
struct Loop : Object {
  std::shared_ptr<List> items;
  size_t index = 0;  // of the current item
  int depth = 1;
  Value recurse;       // what loop(...) calls in a recursive loop
  Value last_changed;  // argument of the previous loop.changed(...)
  bool has_changed = false;
  void clear() override {
    items.reset();
    recurse = last_changed = Value();
  }
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

struct Callable : Object {
  std::string name;
  std::function<Value(Runtime&, Arguments&)> call;
  void clear() override { call = nullptr; }
};

// Containers from their items. Throw Error when they nest deeper than kMaxNesting.
Value make_list(std::vector<Value> items);
Value make_tuple(std::vector<Value> items);
Value make_iterator(std::vector<Value> items);
std::shared_ptr<Dict> make_dict();
Value make_callable(std::string name, std::function<Value(Runtime&, Arguments&)> call);
// The nesting that an object holding `value` has at least; throws Error beyond kMaxNesting.
int nesting_around(const Value& value);

Value from_json(const nlohmann::json& json);
Value from_json(const nlohmann::ordered_json& json);  // keeps the order of keys, which templates print

// Python's name of the type: "str", "dict", ...
std::string_view type_name(const Value& value);
bool is_true(const Value& value);

// Counts the work of walks through values, whose cost a hostile template can make exponential in its size. Work is
// visited values + bytes / 64. Throws Error beyond the limits.
class Meter {
 public:
  explicit Meter(size_t max_work) : max_work_(max_work) {}
  void spend(size_t units);

  // One level deeper into nested containers.
  class Level {
   public:
    explicit Level(Meter& meter);
    ~Level() { --meter_.depth_; }
    Level(const Level&) = delete;

   private:
    Meter& meter_;
  };

 private:
  size_t work_ = 0, max_work_;
  int depth_ = 0;
};

// Throws Error on values that Python cannot order.
int compare(const Value& a, const Value& b, Meter& meter);
bool equal(const Value& a, const Value& b, Meter& meter);
// As str() and repr() print it.
std::string to_text(const Value& value, Meter& meter);
std::string to_repr(const Value& value, Meter& meter);
std::string format_float(double value);
// For error messages: a scalar as repr() prints it, cut when long; else only the type.
std::string short_repr(const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::string indent;  // one level's; used when has_indent
  bool has_indent = false;
  std::string item_separator = ", ", key_separator = ": ";
};
// As json.dumps prints it. Throws Error on values JSON does not have.
std::string to_json(const Value& value, const JsonStyle& style, Meter& meter);

// ---- UTF-8 ---------------------------------------------------------------------------------------------------------
size_t num_code_points(std::string_view text);
size_t code_point_bytes(std::string_view text);  // of the first code point; an invalid byte counts as one
std::vector<std::string_view> split_code_points(std::string_view text);
template <class Visit>
void each_code_point(std::string_view text, Visit visit) {
  for (size_t at = 0; at < text.size();) {
    size_t n = code_point_bytes(text.substr(at));
    visit(text.substr(at, n));
    at += n;
  }
}
bool is_space(std::string_view code_point);  // as str.isspace
// Without leading / trailing code points in `chars`, or white space when `chars` is null.
std::string_view strip(std::string_view text, const std::string* chars, bool left, bool right);

}  // namespace sinter::tokenizer::jinja
