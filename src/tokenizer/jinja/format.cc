// Python's two ways to format a text: 'x %s' % values and 'x {}'.format(...).
#include <algorithm>
#include <cctype>
#include <cmath>

#include "tokenizer/jinja/runtime.h"

namespace sinter::tokenizer::jinja {
namespace {

using base::fail;

constexpr int64_t kMaxWidth = 10'000;

struct Spec {
  char fill = ' ', align = '\0', sign = '-', type = '\0';
  bool has_comma = false, is_alternate = false, has_precision = false;
  int64_t width = 0, precision = 0;
};

std::string grouped(std::string digits) {
  size_t end = digits.find('.');
  if (end == std::string::npos) end = digits.size();
  for (size_t at = end; at > 3; at -= 3) digits.insert(at - 3, ",");
  return digits;
}

std::string format_number_body(const Spec& spec, const Value& value) {
  switch (spec.type) {
    case 'f':
    case 'F':
      return fmt::format("{:.{}f}", std::abs(value.number()), spec.has_precision ? spec.precision : 6);
    case 'e':
    case 'E': {
      std::string text = fmt::format("{:.{}e}", std::abs(value.number()), spec.has_precision ? spec.precision : 6);
      return spec.type == 'E' ? to_upper(text) : text;
    }
    case 'g':
    case 'G':
      return fmt::format("{:.{}g}", std::abs(value.number()), spec.has_precision ? spec.precision : 6);
    case '%':
      return fmt::format("{:.{}f}%", std::abs(value.number()) * 100, spec.has_precision ? spec.precision : 6);
    default:
      break;
  }
  if (value.is(Kind::floating) && (spec.type == '\0' || spec.type == 's')) {
    if (spec.has_precision) return fmt::format("{:.{}g}", std::abs(value.number()), spec.precision);
    return format_float(std::abs(value.number()));
  }
  SINTER_CHECK(value.is_whole(), "the format '{}' takes a whole number, found {}", spec.type, short_repr(value));
  uint64_t magnitude =
      value.integer() < 0 ? 0 - static_cast<uint64_t>(value.integer()) : static_cast<uint64_t>(value.integer());
  switch (spec.type) {
    case 'x':
      return (spec.is_alternate ? "0x" : "") + fmt::format("{:x}", magnitude);
    case 'X':
      return (spec.is_alternate ? "0X" : "") + fmt::format("{:X}", magnitude);
    case 'o':
      return (spec.is_alternate ? "0o" : "") + fmt::format("{:o}", magnitude);
    case 'b':
      return (spec.is_alternate ? "0b" : "") + fmt::format("{:b}", magnitude);
    case 'd':
    case 'n':
    case '\0':
      return std::to_string(magnitude);
    default:
      fail("unknown format '{}'", spec.type);
  }
}

std::string apply(Runtime& runtime, const Spec& spec, const Value& value) {
  bool is_text =
      !value.is_number() || value.is(Kind::boolean) ? spec.type == '\0' || spec.type == 's' : spec.type == 's';
  std::string sign, body;
  if (is_text || !value.is_number()) {
    SINTER_CHECK(is_text, "the format '{}' takes a number, found {}", spec.type, short_repr(value));
    body = to_text(value, runtime.meter);
    if (spec.has_precision) body = runtime.slice(Value(body), Value(0), Value(spec.precision), Value::none()).text();
  } else {
    bool is_negative = value.is(Kind::floating) ? std::signbit(value.number()) : value.integer() < 0;
    sign = is_negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
    body = format_number_body(spec, value);
    if (spec.has_comma) body = grouped(body);
  }
  auto size = static_cast<int64_t>(num_code_points(body) + sign.size());
  int64_t padding = std::max<int64_t>(0, spec.width - size);
  char align = spec.align ? spec.align : is_text ? '<' : '>';
  if (align == '=') return sign + std::string(static_cast<size_t>(padding), spec.fill) + body;
  int64_t left = align == '>' ? padding : align == '^' ? padding / 2 : 0;
  return std::string(static_cast<size_t>(left), spec.fill) + sign + body +
         std::string(static_cast<size_t>(padding - left), spec.fill);
}

// Digits at `at`, which moves past them.
int64_t take_number(std::string_view text, size_t& at) {
  int64_t number = 0;
  for (; at < text.size() && std::isdigit(static_cast<unsigned char>(text[at])); ++at) {
    number = number * 10 + (text[at] - '0');
    SINTER_CHECK(number <= kMaxWidth, "a format asks for more than {} places", kMaxWidth);
  }
  return number;
}

// [[fill]align][sign][#][0][width][,][.precision][type]
Spec parse_spec(std::string_view text) {
  Spec spec;
  static constexpr std::string_view kAligns = "<>^=";
  size_t at = 0;
  if (text.size() > 1 && kAligns.find(text[1]) != std::string_view::npos) {
    spec.fill = text[0];
    spec.align = text[1];
    at = 2;
  } else if (!text.empty() && kAligns.find(text[0]) != std::string_view::npos) {
    spec.align = text[at++];
  }
  auto skip = [&](char c) { return at < text.size() && text[at] == c && ++at; };
  if (at < text.size() && std::string_view("+- ").find(text[at]) != std::string_view::npos) spec.sign = text[at++];
  spec.is_alternate = skip('#');
  if (skip('0') && !spec.align) {
    spec.fill = '0';
    spec.align = '=';
  }
  spec.width = take_number(text, at);
  spec.has_comma = skip(',');
  if (skip('.')) {
    spec.has_precision = true;
    spec.precision = take_number(text, at);
  }
  if (at < text.size()) spec.type = text[at++];
  SINTER_CHECK(at == text.size(), "the format '{}' is not understood", text);
  return spec;
}

// The value of "0", "name", "name.attribute[key]" or "" (the next one).
Value field_value(Runtime& runtime, std::string_view field, const Arguments& arguments, size_t& next) {
  size_t end = std::min(field.find('.'), field.find('['));
  std::string_view head = field.substr(0, end);
  Value value;
  if (head.empty() || std::isdigit(static_cast<unsigned char>(head[0]))) {
    size_t at = 0;
    size_t index = head.empty() ? next++ : static_cast<size_t>(take_number(head, at));
    SINTER_CHECK(index < arguments.positional.size(), "format: there is no argument {}", index);
    value = arguments.positional[index];
  } else {
    auto found =
        std::find_if(arguments.named.begin(), arguments.named.end(), [&](const auto& n) { return n.first == head; });
    SINTER_CHECK(found != arguments.named.end(), "format: there is no argument '{}'", head);
    value = found->second;
  }
  while (end < field.size()) {
    bool is_item = field[end] == '[';
    size_t stop = is_item ? field.find(']', end) : field.find_first_of(".[", end + 1);
    SINTER_CHECK(!is_item || stop != std::string_view::npos, "format: '[' is never closed in '{}'", field);
    std::string_view name = field.substr(end + 1, stop == std::string_view::npos ? stop : stop - end - 1);
    bool is_index =
        !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isdigit(c); });
    size_t at = 0;
    value = is_item ? runtime.item(value, is_index ? Value(take_number(name, at)) : Value(name))
                    : runtime.attribute(value, name);
    end = stop == std::string_view::npos ? field.size() : stop + (is_item ? 1 : 0);
  }
  return value;
}

}  // namespace

std::string format_braces(Runtime& runtime, const std::string& format, const Arguments& arguments) {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    char c = format[i];
    bool is_double = i + 1 < format.size() && format[i + 1] == c;
    if ((c == '{' || c == '}') && is_double) {
      out += c;
      ++i;
      continue;
    }
    if (c != '{') {
      SINTER_CHECK(c != '}', "format: a single '}}' in the text");
      out += c;
      continue;
    }
    size_t close = format.find('}', i);
    SINTER_CHECK(close != std::string::npos, "format: '{{' is never closed");
    std::string_view field = std::string_view(format).substr(i + 1, close - i - 1), spec;
    if (size_t colon = field.find(':'); colon != std::string_view::npos) {
      spec = field.substr(colon + 1);
      field = field.substr(0, colon);
    }
    char conversion = '\0';
    if (size_t mark = field.find('!'); mark != std::string_view::npos && mark + 2 == field.size()) {
      conversion = field[mark + 1];
      field = field.substr(0, mark);
    }
    Value value = field_value(runtime, field, arguments, next);
    if (conversion == 'r') value = Value(to_repr(value, runtime.meter));
    if (conversion == 's') value = Value(to_text(value, runtime.meter));
    out += apply(runtime, parse_spec(spec), value);
    runtime.charge(1 + out.size() / 4096);
    i = close;
  }
  runtime.charge_text(out.size());
  return out;
}

std::string format_percent(Runtime& runtime, const std::string& format, const Value& values) {
  std::vector<Value> items{values};
  if (values.is(Kind::list) && values.list()->is_tuple) items = values.list()->items;
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    ++i;
    Value value;
    bool is_named = i < format.size() && format[i] == '(';
    if (is_named) {
      size_t close = format.find(')', i);
      SINTER_CHECK(close != std::string::npos, "'%(' is never closed in a format");
      value = runtime.item(values, Value(std::string_view(format).substr(i + 1, close - i - 1)));
      i = close + 1;
    }
    Spec spec;
    spec.align = '>';
    for (; i < format.size() && std::string_view("-+ 0#").find(format[i]) != std::string_view::npos; ++i) {
      if (format[i] == '-') spec.align = '<';
      if (format[i] == '+' || format[i] == ' ') spec.sign = format[i];
      if (format[i] == '#') spec.is_alternate = true;
      if (format[i] == '0' && spec.align != '<') {
        spec.fill = '0';
        spec.align = '=';
      }
    }
    spec.width = take_number(format, i);
    if (i < format.size() && format[i] == '.') {
      spec.has_precision = true;
      spec.precision = take_number(format, ++i);
    }
    SINTER_CHECK(i < format.size(), "a format ends in the middle of '%'");
    char type = format[i];
    if (type == '%') {
      out += '%';
      continue;
    }
    if (!is_named) {
      SINTER_CHECK(next < items.size(), "a format has more '%' than there are values ({})", items.size());
      value = items[next++];
    }
    SINTER_CHECK(std::string_view("sridufFeEgGxXo").find(type) != std::string_view::npos, "unknown format '%{}'", type);
    if (type == 'r') value = Value(to_repr(value, runtime.meter));
    bool is_whole = type == 'i' || type == 'd' || type == 'u';
    if (is_whole && value.is(Kind::floating) && std::abs(value.number()) < 9e18)
      value = Value(static_cast<int64_t>(value.number()));
    if (is_whole && value.is(Kind::boolean)) value = Value(value.integer());
    spec.type = is_whole ? 'd' : type == 'r' ? 's' : type;
    if (spec.type == 's' && spec.fill == '0') spec.fill = ' ', spec.align = '>';
    out += apply(runtime, spec, value);
    runtime.charge(1 + out.size() / 4096);
  }
  bool is_one = !values.is(Kind::list) || !values.list()->is_tuple;
  SINTER_CHECK(next == items.size() || is_one, "a format uses {} of {} values", next, items.size());
  runtime.charge_text(out.size());
  return out;
}

}  // namespace sinter::tokenizer::jinja
