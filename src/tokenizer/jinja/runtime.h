// What filters, tests, methods and the interpreter share while a template renders: the limits that keep hostile
// templates from hanging or filling the memory, access to attributes and items, calls, iteration.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/lexer.h"
#include "tokenizer/jinja/value.h"

namespace sinter::tokenizer::jinja {

struct Limits {
  size_t max_work = 20'000'000;  // evaluated nodes + items touched + bytes made / 64: a few seconds at most
  size_t max_output_bytes = size_t{16} << 20;  // of the output and of every text on the way
  int max_depth = 900;                         // nested evaluations, macros included
};

class Runtime {
 public:
  explicit Runtime(const Limits& limits) : meter(limits.max_work), limits_(limits) {}
  Runtime(const Runtime&) = delete;
  ~Runtime();

  // Counts work done; throws Error when a limit is passed.
  void charge(size_t units) { meter.spend(units); }
  void charge_text(size_t size_bytes);                                      // copied or made
  void charge_walk(size_t size_bytes) { meter.spend(1 + size_bytes / 4); }  // gone through by characters
  void check_size(size_t size_bytes) const;  // of a text that grows; throws when too large

  // Holds a container that templates can change until the rendering ends, and empties it then: whatever cycle or chain
  // was tied, freeing it never recurses.
  void keep(std::shared_ptr<Object> object);

  Value call(const Value& callee, Arguments& arguments);
  Value attribute(const Value& object, std::string_view name);  // object.name
  Value item(const Value& object, const Value& key);            // object[key]
  Value slice(const Value& object, const Value& begin, const Value& end, const Value& step);
  Value binary(std::string_view op, const Value& a, const Value& b);
  bool contains(const Value& container, const Value& item);
  // The items of anything that a for loop takes; empties iterators.
  std::vector<Value> iterate(const Value& value);
  int64_t length(const Value& value);
  Value filter(std::string_view name, const Value& input, Arguments& arguments);
  bool test(std::string_view name, const Value& input, Arguments& arguments);

  Meter meter;
  int64_t now = 0;  // seconds since 1970 for strftime_now

 protected:
  Limits limits_;

 private:
  std::vector<std::shared_ptr<Object>> kept_;
};

// Reads the arguments of one call in the order of its parameters; every error names `what`.
class ArgumentReader {
 public:
  ArgumentReader(const Arguments& arguments, std::string what) : arguments_(arguments), what_(std::move(what)) {}
  Value get(std::string_view name, Value standard = Value::none());
  Value require(std::string_view name);
  int64_t get_integer(std::string_view name, int64_t standard);
  bool get_flag(std::string_view name, bool standard) { return is_true(get(name, Value(standard))); }
  std::string get_text(std::string_view name, std::string_view standard) {
    return as_text(name, get(name, Value(standard)));
  }
  std::string require_text(std::string_view name) { return as_text(name, require(name)); }
  // Throws Error when arguments are left over.
  void finish();

 private:
  const Value* find(std::string_view name);
  std::string as_text(std::string_view name, const Value& value) const;
  const Arguments& arguments_;
  std::string what_;
  size_t position_ = 0;
  size_t num_named_ = 0;
};

// Throws Error with what was missing when `value` is undefined.
void check_defined(const Value& value, std::string_view use);
// The whole number in `value`, or an Error that names `what`.
int64_t to_integer(const Value& value, std::string_view what);

using Method = Value (*)(Runtime&, const Value& self, const Arguments&);
using MethodTable = std::unordered_map<std::string_view, Method>;
const MethodTable& text_methods();
// A method of a str, list, dict or loop bound to its object; undefined when the type has no such method.
Value bind_method(const Value& self, std::string_view name);

using Filter = Value (*)(Runtime&, const Value&, const Arguments&);
using Test = bool (*)(Runtime&, const Value&, const Arguments&);
using FilterTable = std::unordered_map<std::string_view, Filter>;
// The tables are one map each, filled by the files of their kind.
const FilterTable& filter_table();
const std::unordered_map<std::string_view, Test>& test_table();
void add_text_filters(FilterTable& table);
void add_sequence_filters(FilterTable& table);

// The functions every template sees: range, namespace, dict, raise_exception, ...
std::shared_ptr<Dict> make_globals();

// '%s and %d' % values, as Python's str formats them.
std::string format_percent(Runtime& runtime, const std::string& format, const Value& values);
// '{} and {name}'.format(...)
std::string format_braces(Runtime& runtime, const std::string& format, const Arguments& arguments);

// ---- text operations used by methods and filters --------------------------------------------------------------------
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);
// `text` with the mark that `like` has.
Value marked_as(const Value& like, std::string text);
std::string replace_text(Runtime& runtime, std::string_view text, std::string_view from, std::string_view to,
                         int64_t count);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends = false);

}  // namespace sinter::tokenizer::jinja
