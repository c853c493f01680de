// Filters on texts and numbers, and the text operations that methods share with them.
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/html.h"
#include "tokenizer/jinja/runtime.h"

namespace sinter::tokenizer::jinja {
namespace {

using base::fail;

template <utf8proc_int32_t (*kMap)(utf8proc_int32_t)>
std::string map_case(std::string_view text, bool is_upper) {
  std::string out;
  out.reserve(text.size());
  each_code_point(text, [&](std::string_view point) {
    utf8proc_int32_t code = -1;
    auto n = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(point.data()),
                              static_cast<utf8proc_ssize_t>(point.size()), &code);
    if (n <= 0) {
      out += point;
    } else if (is_upper && code == 0xdf) {  // the two letters whose other case is longer and that people write
      out += "SS";
    } else if (!is_upper && code == 0x130) {
      out += "i\xcc\x87";
    } else {
      utf8proc_uint8_t encoded[4];
      auto size = utf8proc_encode_char(kMap(code), encoded);
      out.append(reinterpret_cast<const char*>(encoded), static_cast<size_t>(size));
    }
  });
  return out;
}

std::string text_of(Runtime& runtime, const Value& value) {
  std::string text = to_text(value, runtime.meter);
  runtime.charge_text(text.size());
  return text;
}

template <std::string (*kChange)(std::string_view)>
Value change(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader(arguments, "the filter").finish();
  std::string text = text_of(runtime, input);
  runtime.charge_walk(text.size());
  return marked_as(input, kChange(text));
}

Value trim(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'trim'");
  Value chars = reader.get("chars");
  reader.finish();
  std::string text = text_of(runtime, input);
  if (chars.is(Kind::none)) return marked_as(input, std::string(strip(text, nullptr, true, true)));
  std::string set = text_of(runtime, chars);
  runtime.charge(text.size() * (set.size() + 1) / 64);
  return marked_as(input, std::string(strip(text, &set, true, true)));
}

// Jinja's title: words begin after white space, a hyphen or an opening bracket, and nowhere else.
std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  each_code_point(text, [&](std::string_view point) {
    bool is_break = is_space(point) || std::string_view("-({[<").find(point) != std::string_view::npos;
    out += in_word ? to_lower(point) : to_upper(point);
    in_word = !is_break;
  });
  return out;
}

Value replace(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'replace'");
  std::string from = text_of(runtime, reader.require("old")), to = text_of(runtime, reader.require("new"));
  Value count = reader.get("count");
  reader.finish();
  return replace_text(runtime, text_of(runtime, input), from, to,
                      count.is(Kind::none) ? -1 : to_integer(count, "filter 'replace': count"));
}

Value indent(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'indent'");
  Value width = reader.get("width", Value(4));
  bool with_first = reader.get_flag("first", false), with_blank = reader.get_flag("blank", false);
  reader.finish();
  std::string margin;
  if (width.is(Kind::text)) {
    margin = width.text();
  } else {
    int64_t count = std::max<int64_t>(0, to_integer(width, "filter 'indent': width"));
    runtime.charge_text(static_cast<size_t>(count));
    margin.assign(static_cast<size_t>(count), ' ');
  }
  std::string text = text_of(runtime, input) + "\n", out;
  bool is_first = true;
  for (std::string_view line : split_lines(text)) {
    runtime.charge(1);
    runtime.charge_text(margin.size() + line.size());
    runtime.check_size(out.size() + margin.size());
    if (!is_first) out += '\n';
    if (is_first ? with_first : with_blank || !line.empty()) out += margin;
    out += line;
    is_first = false;
  }
  return out;
}

Value escape(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader(arguments, "filter 'escape'").finish();
  if (input.is_markup()) return input;
  std::string out = base::escape_html(text_of(runtime, input));
  runtime.charge_text(out.size());
  return Value::markup(std::move(out));
}

Value safe(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader(arguments, "filter 'safe'").finish();
  return Value::markup(text_of(runtime, input));
}

Value url_encode(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader(arguments, "filter 'urlencode'").finish();
  std::string out;
  for (char c : text_of(runtime, input)) {
    bool is_plain =
        std::isalnum(static_cast<unsigned char>(c)) || std::string_view("_.-~/").find(c) != std::string_view::npos;
    out += is_plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

Value center(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'center'");
  Arguments width{{Value(reader.get_integer("width", 80))}, {}};
  reader.finish();
  return runtime.call(bind_method(Value(text_of(runtime, input)), "center"), width);
}

Value truncate(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'truncate'");
  int64_t length = reader.get_integer("length", 255);
  bool cuts_words = reader.get_flag("killwords", false);
  std::string end = reader.get_text("end", "...");
  int64_t leeway = reader.get_integer("leeway", 5);
  reader.finish();
  Value text(text_of(runtime, input));
  auto end_size = static_cast<int64_t>(num_code_points(end));
  SINTER_CHECK(length >= end_size, "filter 'truncate' needs a length of at least {}", end_size);
  if (runtime.length(text) <= length + std::max<int64_t>(leeway, 0)) return text;
  std::string cut = runtime.slice(text, Value(0), Value(length - end_size), Value::none()).text();
  if (!cuts_words && cut.find(' ') != std::string::npos) cut.resize(cut.rfind(' '));
  return cut + end;
}

Value word_count(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader(arguments, "filter 'wordcount'").finish();
  int64_t count = 0;
  bool in_word = false;
  std::string text = text_of(runtime, input);
  runtime.charge_walk(text.size());
  each_code_point(text, [&](std::string_view point) {
    bool is_word =
        point.size() > 1 ? !is_space(point) : std::isalnum(static_cast<unsigned char>(point[0])) || point == "_";
    count += is_word && !in_word;
    in_word = is_word;
  });
  return count;
}

Value percent_format(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (arguments.named.empty())
    return format_percent(runtime, text_of(runtime, input), make_tuple(arguments.positional));
  auto dict = make_dict();
  for (const auto& [name, value] : arguments.named) dict->set(Value(name), value);
  return format_percent(runtime, text_of(runtime, input), dict);
}

// ---- numbers -------------------------------------------------------------------------------------------------------

// A whole text as a number in Python's spelling; false when it is none.
template <class Number, class... Base>
bool parse_number(std::string_view text, Number& out, Base... base) {
  text = strip(text, nullptr, true, true);
  if (text.starts_with('+') && text.size() > 1 && text[1] != '-') text.remove_prefix(1);
  std::string plain;
  for (char c : text) {
    if (c != '_') plain += c;
  }
  auto result = std::from_chars(plain.data(), plain.data() + plain.size(), out, base...);
  return result.ec == std::errc() && result.ptr == plain.data() + plain.size() && !plain.empty();
}

Value to_int(Runtime&, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'int'");
  Value standard = reader.get("default", Value(0));
  int64_t base = reader.get_integer("base", 10);
  reader.finish();
  check_defined(input, "made a whole number");
  SINTER_CHECK(base >= 2 && base <= 36, "filter 'int': base {} is not between 2 and 36", base);
  double number = 0;
  if (input.is_whole()) return input.integer();
  if (input.is(Kind::text)) {
    std::string text = input.text();
    if (base == 16 && (text.starts_with("0x") || text.starts_with("0X"))) text.erase(0, 2);
    int64_t whole = 0;
    if (parse_number(text, whole, static_cast<int>(base))) return whole;
    if (!parse_number(text, number)) return standard;
  } else if (input.is(Kind::floating)) {
    number = input.number();
  } else {
    return standard;
  }
  if (!(std::abs(number) < 9.2e18)) return standard;
  return static_cast<int64_t>(number);
}

Value to_float(Runtime&, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'float'");
  Value standard = reader.get("default", Value(0.0));
  reader.finish();
  check_defined(input, "made a number");
  if (input.is_number()) return input.number();
  double number = 0;
  if (input.is(Kind::text) && parse_number(input.text(), number)) return number;
  return standard;
}

Value round_number(Runtime&, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'round'");
  int64_t digits = reader.get_integer("precision", 0);
  std::string method = reader.get_text("method", "common");
  reader.finish();
  SINTER_CHECK(input.is_number(), "filter 'round' takes a number, found {}", short_repr(input));
  SINTER_CHECK(method == "common" || method == "ceil" || method == "floor",
               "filter 'round': method '{}'; expected common, ceil or floor", method);
  digits = std::clamp<int64_t>(digits, -300, 300);
  if (method != "common") {
    double scale = std::pow(10.0, static_cast<double>(digits)), scaled = input.number() * scale;
    return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
  }
  if (input.is_whole() && digits >= 0) return input.integer();
  if (!std::isfinite(input.number())) return input;
  double rounded = 0;
  if (digits >= 0) {  // printing rounds the exact decimal value half to even, as Python does
    std::string text = fmt::format("{:.{}f}", input.number(), digits);
    std::from_chars(text.data(), text.data() + text.size(), rounded);
  } else {
    double scale = std::pow(10.0, static_cast<double>(-digits));
    rounded = std::nearbyint(input.number() / scale) * scale;
  }
  if (input.is_whole()) return static_cast<int64_t>(rounded);
  return rounded;
}

Value absolute(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader(arguments, "filter 'abs'").finish();
  SINTER_CHECK(input.is_number(), "filter 'abs' takes a number, found {}", short_repr(input));
  if (input.is(Kind::floating)) return std::abs(input.number());
  return input.integer() < 0 ? runtime.binary("-", Value(0), input) : Value(input.integer());
}

// ---- any value -----------------------------------------------------------------------------------------------------

Value as_text(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader(arguments, "filter 'string'").finish();
  return marked_as(input, text_of(runtime, input));
}

Value standard_value(Runtime&, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'default'");
  Value standard = reader.get("default_value", Value(""));
  bool also_false = reader.get_flag("boolean", false);
  reader.finish();
  return input.is(Kind::undefined) || (also_false && !is_true(input)) ? standard : input;
}

Value as_json(Runtime& runtime, const Value& input, const Arguments& arguments) {
  ArgumentReader reader(arguments, "filter 'tojson'");
  JsonStyle style;
  style.ensure_ascii = reader.get_flag("ensure_ascii", false);
  Value indent = reader.get("indent"), separators = reader.get("separators");
  style.sort_keys = reader.get_flag("sort_keys", false);
  reader.finish();
  if (!indent.is(Kind::none)) {
    style.has_indent = true;
    style.item_separator = ",";
    if (indent.is(Kind::text)) {
      style.indent = indent.text();
    } else {
      int64_t width = std::clamp<int64_t>(to_integer(indent, "filter 'tojson': indent"), 0, 1000);
      style.indent.assign(static_cast<size_t>(width), ' ');
    }
  }
  if (!separators.is(Kind::none)) {
    std::vector<Value> pair = runtime.iterate(separators);
    SINTER_CHECK(pair.size() == 2 && pair[0].is(Kind::text) && pair[1].is(Kind::text),
                 "filter 'tojson': separators is not a pair of texts");
    style.item_separator = pair[0].text();
    style.key_separator = pair[1].text();
    runtime.charge_text(style.item_separator.size() + style.key_separator.size());
    SINTER_CHECK(style.item_separator.size() + style.key_separator.size() < 64,
                 "filter 'tojson': separators are too long");
  }
  std::string out = to_json(input, style, runtime.meter);
  runtime.charge_text(out.size());
  return out;
}

}  // namespace

std::string to_upper(std::string_view text) { return map_case<utf8proc_toupper>(text, true); }
std::string to_lower(std::string_view text) { return map_case<utf8proc_tolower>(text, false); }

std::string capitalize(std::string_view text) {
  if (text.empty()) return "";
  size_t first = code_point_bytes(text);
  return to_upper(text.substr(0, first)) + to_lower(text.substr(first));
}

Value marked_as(const Value& like, std::string text) {
  return like.is_markup() ? Value::markup(std::move(text)) : Value(std::move(text));
}

std::string replace_text(Runtime& runtime, std::string_view text, std::string_view from, std::string_view to,
                         int64_t count) {
  runtime.charge(text.size() * (from.size() + 4) / 256);
  std::string out;
  size_t at = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    size_t found = from.empty() ? at : text.find(from, at);
    if (found == std::string_view::npos || (from.empty() && done > 0 && at >= text.size())) break;
    runtime.charge(1 + to.size() / 64);
    runtime.check_size(out.size() + to.size());
    if (from.empty()) {  // Python puts it before every character and at the end
      out += to;
      if (at >= text.size()) break;
      size_t n = code_point_bytes(text.substr(at));
      out += text.substr(at, n);
      at += n;
      if (at >= text.size() && (count < 0 || done + 1 < count)) out += to;
    } else {
      out += text.substr(at, found - at);
      out += to;
      at = found + from.size();
    }
  }
  out += text.substr(std::min(at, text.size()));
  runtime.charge_text(out.size());
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    // Python also ends lines at VT, FF, FS, GS, RS, NEL and the Unicode separators.
    std::string_view rest = text.substr(i);
    size_t width = rest.starts_with("\r\n")                                                           ? 2
                   : std::string_view("\n\r\v\f\x1c\x1d\x1e").find(rest[0]) != std::string_view::npos ? 1
                   : rest.starts_with("\xc2\x85")                                                     ? 2
                   : rest.starts_with("\xe2\x80\xa8") || rest.starts_with("\xe2\x80\xa9")             ? 3
                                                                                                      : 0;
    i += std::max<size_t>(width, 1);
    if (width == 0) continue;
    lines.push_back(text.substr(begin, (keep_ends ? i : end) - begin));
    begin = i;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

void add_text_filters(FilterTable& table) {
  table.insert({
      {"trim", trim},
      {"upper", change<to_upper>},
      {"lower", change<to_lower>},
      {"title", change<title>},
      {"capitalize", change<capitalize>},
      {"replace", replace},
      {"indent", indent},
      {"escape", escape},
      {"e", escape},
      {"forceescape", escape},
      {"urlencode", url_encode},
      {"center", center},
      {"truncate", truncate},
      {"wordcount", word_count},
      {"format", percent_format},
      {"string", as_text},
      {"safe", safe},
      {"int", to_int},
      {"float", to_float},
      {"round", round_number},
      {"abs", absolute},
      {"default", standard_value},
      {"d", standard_value},
      {"tojson", as_json},
  });
}

}  // namespace sinter::tokenizer::jinja
