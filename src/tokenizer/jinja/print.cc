// How values are written: str(), repr() and json.dumps() of Python, and the UTF-8 helpers they share.
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "tokenizer/jinja/value.h"

namespace sinter::tokenizer::jinja {
namespace {

using base::fail;

int32_t decode(std::string_view code_point) {
  utf8proc_int32_t code = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(code_point.data()),
                   static_cast<utf8proc_ssize_t>(code_point.size()), &code);
  return code;
}

// repr() escapes what str.isprintable() refuses: separators other than the space, control, format, unassigned.
bool is_printable(int32_t code) {
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return code == ' ';
    default:
      return true;
  }
}

std::string text_repr(const std::string& text) {
  char quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  each_code_point(text, [&](std::string_view c) {
    int32_t code = decode(c);
    if (c[0] == quote || c[0] == '\\') {
      out.append("\\").append(c);
    } else if (c == "\n" || c == "\r" || c == "\t") {
      out.append(c == "\n" ? "\\n" : c == "\r" ? "\\r" : "\\t");
    } else if (code >= 0 && is_printable(code)) {
      out.append(c);
    } else {
      uint32_t bits = code >= 0 ? static_cast<uint32_t>(code) : static_cast<unsigned char>(c[0]);
      out += bits < 0x100     ? fmt::format("\\x{:02x}", bits)
             : bits < 0x10000 ? fmt::format("\\u{:04x}", bits)
                              : fmt::format("\\U{:08x}", bits);
    }
  });
  return out + quote;
}

void append_json_text(std::string& out, const std::string& text, bool ensure_ascii) {
  out += '"';
  each_code_point(text, [&](std::string_view c) {
    auto byte = static_cast<unsigned char>(c[0]);
    if (byte == '"' || byte == '\\') {
      out.append("\\").append(c);
    } else if (byte < 0x20) {
      static constexpr std::string_view kShort = "\b\t\n\f\r", kLetters = "btnfr";
      size_t at = kShort.find(c[0]);
      out += at == std::string_view::npos ? fmt::format("\\u{:04x}", byte) : std::string("\\") + kLetters[at];
    } else if (byte < 0x80 || !ensure_ascii) {
      out.append(c);
    } else {
      int32_t code = std::max(decode(c), 0);
      if (code < 0x10000) {
        out += fmt::format("\\u{:04x}", code);
      } else {
        out +=
            fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((code - 0x10000) >> 10), 0xdc00 + ((code - 0x10000) & 0x3ff));
      }
    }
  });
  out += '"';
}

std::string json_key(const Value& key) {
  switch (key.kind()) {
    case Kind::text:
      return key.text();
    case Kind::none:
      return "null";
    case Kind::boolean:
      return key.boolean() ? "true" : "false";
    case Kind::integer:
      return std::to_string(key.integer());
    case Kind::floating:
      return format_float(key.number());
    default:
      fail("a {} cannot be a key in JSON", type_name(key));
  }
}

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return format_float(value);
}

class JsonPrinter {
 public:
  JsonPrinter(const JsonStyle& style, Meter& meter) : style_(style), meter_(meter) {}

  void print(const Value& value, int depth) {
    Meter::Level level(meter_);
    switch (value.kind()) {
      case Kind::none:
        out += "null";
        return;
      case Kind::boolean:
        out += value.boolean() ? "true" : "false";
        return;
      case Kind::integer:
        out += std::to_string(value.integer());
        return;
      case Kind::floating:
        out += json_float(value.number());
        return;
      case Kind::text:
        meter_.spend(value.text().size() / 16);
        append_json_text(out, value.text(), style_.ensure_ascii);
        return;
      case Kind::list:
        print_list(value.list()->items, depth);
        return;
      case Kind::dict:
        print_dict(value.dict()->items(), depth);
        return;
      case Kind::undefined: {
        const auto& hint = value.undefined_hint().hint;
        fail("{}, so it cannot be written as JSON", hint ? *hint : "the value is undefined");
      }
      default:
        fail("a {} cannot be written as JSON", type_name(value));
    }
  }

  std::string out;

 private:
  void new_line(int depth) {
    if (!style_.has_indent) return;
    out += '\n';
    meter_.spend(1 + style_.indent.size() * static_cast<size_t>(depth) / 64);
    for (int i = 0; i < depth; ++i) out += style_.indent;
  }

  void print_list(const std::vector<Value>& items, int depth) {
    out += '[';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      new_line(depth + 1);
      print(items[i], depth + 1);
    }
    if (!items.empty()) new_line(depth);
    out += ']';
  }

  void print_dict(const std::vector<std::pair<Value, Value>>& given, int depth) {
    std::vector<std::pair<Value, Value>> items = given;
    for (const auto& [key, unused] : items) meter_.spend(1 + (key.is(Kind::text) ? key.text().size() / 16 : 0));
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(),
                       [&](const auto& a, const auto& b) { return compare(a.first, b.first, meter_) < 0; });
    }
    out += '{';
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style_.item_separator;
      new_line(depth + 1);
      append_json_text(out, json_key(items[i].first), style_.ensure_ascii);
      out += style_.key_separator;
      print(items[i].second, depth + 1);
    }
    if (!items.empty()) new_line(depth);
    out += '}';
  }

  const JsonStyle& style_;
  Meter& meter_;
};

}  // namespace

std::string format_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  // The shortest digits that read back as the same double, then Python's choice between 1234.5 and 1.2345e+20.
  char buffer[40];
  auto result = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view all(buffer, static_cast<size_t>(result.ptr - buffer));
  size_t e = all.find('e');
  int exponent = 0;
  std::string_view exponent_text = all.substr(e + 1 + (all[e + 1] == '+'));
  std::from_chars(exponent_text.data(), exponent_text.data() + exponent_text.size(), exponent);
  std::string sign, digits;
  for (char c : all.substr(0, e)) {
    if (c == '-') sign = "-";
    if (c >= '0' && c <= '9') digits += c;
  }
  auto count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1) + (count > 1 ? "." + digits.substr(1) : "");
    return fmt::format("{}{}e{}{:02}", sign, mantissa, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) return sign + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  return sign + digits.substr(0, static_cast<size_t>(exponent + 1)) + "." +
         digits.substr(static_cast<size_t>(exponent + 1));
}

std::string short_repr(const Value& value) {
  if (value.object()) return fmt::format("a {}", type_name(value));
  Meter meter(1000);
  if (!value.is(Kind::text)) return to_repr(value, meter);
  std::string out = text_repr(value.text().substr(0, 80));
  return value.text().size() <= 80 ? out : out + "...";
}

std::string to_repr(const Value& value, Meter& meter) {
  Meter::Level level(meter);
  switch (value.kind()) {
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "None";
    case Kind::boolean:
      return value.boolean() ? "True" : "False";
    case Kind::integer:
      return std::to_string(value.integer());
    case Kind::floating:
      return format_float(value.number());
    case Kind::text:
      meter.spend(value.text().size() / 16);
      return text_repr(value.text());
    case Kind::list: {
      const List& list = *value.list();
      std::string out = list.is_tuple ? "(" : "[";
      for (size_t i = 0; i < list.items.size(); ++i) out += (i ? ", " : "") + to_repr(list.items[i], meter);
      if (list.is_tuple && list.items.size() == 1) out += ",";
      return out + (list.is_tuple ? ")" : "]");
    }
    case Kind::dict: {
      std::string out = "{";
      for (const auto& [key, item] : value.dict()->items()) {
        if (out.size() > 1) out += ", ";
        out += to_repr(key, meter) + ": " + to_repr(item, meter);
      }
      return out + "}";
    }
    case Kind::name_space: {
      std::string out = "<Namespace {";
      for (const auto& [key, item] : value.name_space()->attributes.items()) {
        if (out.back() != '{') out += ", ";
        out += to_repr(key, meter) + ": " + to_repr(item, meter);
      }
      return out + "}>";
    }
    case Kind::callable:
      return "<function " + value.callable()->name + ">";
    case Kind::iterator:
      return "<generator>";
    case Kind::loop:
      return fmt::format("<LoopContext {}/{}>", value.loop()->index + 1, value.loop()->items->items.size());
  }
  return "";
}

std::string to_text(const Value& value, Meter& meter) {
  if (value.is(Kind::undefined)) return "";
  if (!value.is(Kind::text)) return to_repr(value, meter);
  meter.spend(value.text().size() / 64);
  return value.text();
}

std::string to_json(const Value& value, const JsonStyle& style, Meter& meter) {
  JsonPrinter printer(style, meter);
  printer.print(value, 0);
  return std::move(printer.out);
}

size_t code_point_bytes(std::string_view text) {
  auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  utf8proc_int32_t code = -1;
  auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                            static_cast<utf8proc_ssize_t>(std::min<size_t>(text.size(), 4)), &code);
  return n > 0 ? static_cast<size_t>(n) : 1;
}

size_t num_code_points(std::string_view text) {
  size_t count = 0;
  each_code_point(text, [&](std::string_view) { ++count; });
  return count;
}

std::vector<std::string_view> split_code_points(std::string_view text) {
  std::vector<std::string_view> parts;
  each_code_point(text, [&](std::string_view point) { parts.push_back(point); });
  return parts;
}

bool is_space(std::string_view code_point) {
  auto byte = static_cast<unsigned char>(code_point[0]);
  if (byte < 0x80) return byte == ' ' || (byte >= 0x09 && byte <= 0x0d) || (byte >= 0x1c && byte <= 0x1f);
  int32_t code = decode(code_point);
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

std::string_view strip(std::string_view text, const std::string* chars, bool left, bool right) {
  std::vector<std::string_view> set;
  if (chars) set = split_code_points(*chars);
  auto goes = [&](std::string_view c) {
    return chars ? std::find(set.begin(), set.end(), c) != set.end() : is_space(c);
  };
  while (left && !text.empty()) {
    size_t n = code_point_bytes(text);
    if (!goes(text.substr(0, n))) break;
    text.remove_prefix(n);
  }
  while (right && !text.empty()) {
    size_t n = 1;  // step back over continuation bytes
    while (n < 4 && n < text.size() && (static_cast<unsigned char>(text[text.size() - n]) & 0xc0) == 0x80) ++n;
    if (code_point_bytes(text.substr(text.size() - n)) != n) n = 1;
    if (!goes(text.substr(text.size() - n))) break;
    text.remove_suffix(n);
  }
  return text;
}

}  // namespace sinter::tokenizer::jinja
