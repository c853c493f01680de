// Python calls with keyword arguments of literals, as values.
#include <cmath>

#include "eval/checkers/bfcl.h"

namespace sinter::eval {
namespace {

namespace jinja = tokenizer::jinja;
using jinja::Kind;

struct NotPython {};
constexpr int kMaxDepth = 100;

class CallParser {
 public:
  explicit CallParser(std::string text) : text_(std::move(text)) {}

  // f(...), g(...) up to the end.
  Value run() {
    std::vector<Value> calls;
    do {
      skip();
      if (!calls.empty() && at_ == text_.size()) break;  // a comma at the end
      Value call = expression();
      if (!is_call_) throw NotPython();
      calls.push_back(std::move(call));
    } while (take(','));
    skip();
    if (at_ != text_.size() || calls.empty()) throw NotPython();
    return jinja::make_list(std::move(calls));
  }

 private:
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool take(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) throw NotPython();
  }
  static bool is_name_char(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80); }

  Value expression() {
    if (++depth_ > kMaxDepth) throw NotPython();
    Value value = product();
    for (char c = peek(); c == '+' || c == '-'; c = peek()) {
      ++at_;
      const Value right = product();
      value = compute(c, value, right);
    }
    --depth_;
    return value;
  }
  Value product() {
    Value value = unary();
    for (char c = peek(); c == '*' || c == '/'; c = peek()) {
      ++at_;
      if (c == '*' && take('*')) c = '^';
      const Value right = unary();
      value = compute(c, value, right);
    }
    return value;
  }
  Value compute(char op, const Value& a, const Value& b) {
    is_call_ = false;
    if (!a.is_number() || !b.is_number()) throw NotPython();
    if (a.is_whole() && b.is_whole() && op != '/' && op != '^') {
      const int64_t x = a.integer(), y = b.integer();
      return op == '+' ? x + y : op == '-' ? x - y : x * y;
    }
    const double x = a.number(), y = b.number();
    const double r = op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : op == '/' ? x / y : std::pow(x, y);
    if (op == '^' && a.is_whole() && b.is_whole() && y >= 0) return static_cast<int64_t>(r);
    return r;
  }
  Value unary() {
    if (take('-')) {
      const Value value = unary();
      is_call_ = false;
      if (!value.is_number()) throw NotPython();
      return value.is_whole() ? Value(-value.integer()) : Value(-value.number());
    }
    if (take('+')) return unary();
    return atom();
  }
  Value atom() {
    is_call_ = false;
    const char c = peek();
    if (c == '[' || c == '(') return sequence(c);
    if (c == '{') return dict();
    if (c == '"' || c == '\'') return strings();
    if (std::isdigit(static_cast<unsigned char>(c)) || c == '.') return number();
    if (is_name_char(c)) return name();
    throw NotPython();
  }
  Value sequence(char open) {
    const char close = open == '[' ? ']' : ')';
    ++at_;
    std::vector<Value> items;
    bool has_comma = false;
    while (peek() != close) {
      items.push_back(expression());
      if (!take(',')) break;
      has_comma = true;
    }
    expect(close);
    is_call_ = false;
    if (open == '[') return jinja::make_list(std::move(items));
    return items.size() == 1 && !has_comma ? items[0] : jinja::make_tuple(std::move(items));
  }
  Value dict() {
    ++at_;
    auto out = jinja::make_dict();
    while (peek() != '}') {
      const Value key = expression();
      expect(':');
      out->set(key, expression());
      if (!take(',')) break;
    }
    expect('}');
    is_call_ = false;
    return out;
  }
  Value strings() {  // neighbours are joined
    std::string all;
    for (char c = peek(); c == '"' || c == '\''; c = peek()) all += one_string(c);
    return all;
  }
  std::string one_string(char quote) {
    std::string out;
    const std::string three(3, quote);
    const bool is_long = text_.compare(at_, 3, three) == 0;
    at_ += is_long ? 3 : 1;
    for (;; ++at_) {
      if (at_ >= text_.size()) throw NotPython();
      if (is_long ? text_.compare(at_, 3, three) == 0 : text_[at_] == quote) break;
      if (text_[at_] == '\n' && !is_long) throw NotPython();
      if (text_[at_] != '\\' || at_ + 1 >= text_.size()) {
        out += text_[at_];
        continue;
      }
      const char e = text_[++at_];
      constexpr std::string_view kFrom = "ntr\\'\"", kTo = "\n\t\r\\'\"";
      if (const size_t i = kFrom.find(e); i != std::string_view::npos) {
        out += kTo[i];
      } else {
        out += '\\';
        out += e;
      }
    }
    at_ += is_long ? 3 : 1;
    return out;
  }
  Value number() {
    size_t end = at_;
    bool is_float = false;
    while (end < text_.size() &&
           (std::isalnum(static_cast<unsigned char>(text_[end])) || text_[end] == '.' || text_[end] == '_' ||
            ((text_[end] == '-' || text_[end] == '+') && (text_[end - 1] | 32) == 'e'))) {
      is_float = is_float || text_[end] == '.' || (text_[end] | 32) == 'e';
      ++end;
    }
    std::string digits = text_.substr(at_, end - at_);
    std::erase(digits, '_');
    at_ = end;
    char* rest = nullptr;
    const Value value = is_float ? Value(std::strtod(digits.c_str(), &rest))
                                 : Value(static_cast<int64_t>(std::strtoll(digits.c_str(), &rest, 10)));
    if (*rest) throw NotPython();
    return value;
  }
  Value name() {
    std::string full;
    for (;;) {
      skip();
      const size_t begin = at_;
      while (at_ < text_.size() && is_name_char(text_[at_])) ++at_;
      if (at_ == begin) throw NotPython();
      full += text_.substr(begin, at_ - begin);
      if (peek() != '.') break;
      ++at_;
      full += '.';
    }
    if (peek() == '(') return call(full);
    if (full == "True" || full == "False") return Value(full == "True");
    if (full == "None") return Value::none();
    if ((peek() == '"' || peek() == '\'') && full.size() <= 2) return strings();  // r"...", b"..."
    return full;
  }
  Value call(const std::string& name) {
    expect('(');
    auto arguments = jinja::make_dict();
    while (peek() != ')') {
      const size_t before = at_;
      skip();
      size_t end = at_;
      while (end < text_.size() && is_name_char(text_[end])) ++end;
      size_t equals = end;
      while (equals < text_.size() && std::isspace(static_cast<unsigned char>(text_[equals]))) ++equals;
      const bool is_named = end > at_ && equals < text_.size() && text_[equals] == '=' &&
                            (equals + 1 >= text_.size() || text_[equals + 1] != '=');
      if (is_named) {
        const std::string key = text_.substr(at_, end - at_);
        at_ = equals + 1;
        arguments->set(Value(key), expression());
      } else {
        at_ = before;
        expression();  // positional arguments vanish
      }
      if (!take(',')) break;
    }
    expect(')');
    auto out = jinja::make_dict();
    out->set(Value(name), Value(arguments));
    is_call_ = true;
    return out;
  }

  std::string text_;
  size_t at_ = 0;
  int depth_ = 0;
  bool is_call_ = false;  // whether the last value was a call
};

}  // namespace

std::optional<Value> decode_calls(std::string text) {
  const std::string around = "`\n ", brackets = "[]'";
  text = std::string(jinja::strip(text, &around, true, true));
  if (!text.starts_with("[")) text = "[" + text;
  if (!text.ends_with("]")) text += "]";
  text = std::string(jinja::strip(text, &brackets, true, true));
  try {
    return CallParser(text).run();
  } catch (const NotPython&) {
    return std::nullopt;
  }
}

}  // namespace sinter::eval
