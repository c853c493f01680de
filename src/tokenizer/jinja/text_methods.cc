// The methods of str that templates call, with Python's behaviour.
#include <utf8proc.h>

#include <algorithm>

#include "tokenizer/jinja/runtime.h"

namespace sinter::tokenizer::jinja {
namespace {

template <bool kLeft, bool kRight>
Value text_strip(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "strip");
  Value chars = reader.get("chars");
  reader.finish();
  runtime.charge_text(self.text().size());
  if (chars.is(Kind::none)) return marked_as(self, std::string(strip(self.text(), nullptr, kLeft, kRight)));
  SINTER_CHECK(chars.is(Kind::text), "strip takes the characters as a text, found {}", short_repr(chars));
  runtime.charge(self.text().size() * (chars.text().size() + 1) / 64);
  return marked_as(self, std::string(strip(self.text(), &chars.text(), kLeft, kRight)));
}

std::vector<Value> split_on_space(std::string_view text, int64_t max_splits, bool from_right) {
  std::vector<Value> parts;
  text = strip(text, nullptr, !from_right, from_right);
  auto points = split_code_points(text);
  if (from_right) std::reverse(points.begin(), points.end());
  size_t done = 0;  // bytes of `text` used up, from the side where splitting starts
  for (size_t i = 0; i < points.size();) {
    if (max_splits >= 0 && static_cast<int64_t>(parts.size()) >= max_splits) break;
    size_t word = 0, space = 0;
    while (i < points.size() && !is_space(points[i])) word += points[i++].size();
    while (i < points.size() && is_space(points[i])) space += points[i++].size();
    parts.emplace_back(from_right ? text.substr(text.size() - done - word, word) : text.substr(done, word));
    done += word + space;
  }
  if (done < text.size()) {
    parts.emplace_back(from_right ? text.substr(0, text.size() - done) : text.substr(done));
  }
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<Value> split_on(std::string_view text, std::string_view separator, int64_t max_splits, bool from_right) {
  std::vector<Value> parts;
  SINTER_CHECK(!separator.empty(), "split needs a separator that is not empty");
  while (max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits) {
    size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    parts.emplace_back(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  parts.emplace_back(text);
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

template <bool kFromRight>
Value text_split(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "split");
  Value separator = reader.get("sep");
  int64_t max_splits = reader.get_integer("maxsplit", -1);
  reader.finish();
  runtime.charge_walk(self.text().size());
  if (separator.is(Kind::none)) return make_list(split_on_space(self.text(), max_splits, kFromRight));
  SINTER_CHECK(separator.is(Kind::text), "split takes the separator as a text, found {}", short_repr(separator));
  runtime.charge(self.text().size() * separator.text().size() / 256);
  auto parts = split_on(self.text(), separator.text(), max_splits, kFromRight);
  runtime.charge(parts.size());
  return make_list(std::move(parts));
}

template <bool kStart>
Value text_has_affix(Runtime&, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, kStart ? "startswith" : "endswith");
  Value affix = reader.require("prefix");
  reader.finish();
  auto matches = [&](const Value& candidate) {
    SINTER_CHECK(candidate.is(Kind::text), "startswith and endswith take a text, found {}", short_repr(candidate));
    return kStart ? self.text().starts_with(candidate.text()) : self.text().ends_with(candidate.text());
  };
  if (!affix.is(Kind::list)) return matches(affix);
  const auto& items = affix.list()->items;
  return std::any_of(items.begin(), items.end(), matches);
}

template <bool kFromRight, bool kMustExist>
Value text_find(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "find");
  std::string needle = reader.require_text("sub");
  int64_t begin = reader.get_integer("start", 0);
  Value end = reader.get("end");
  reader.finish();
  runtime.charge(self.text().size() * (needle.size() + 4) / 256);
  Value part = runtime.slice(self, Value(begin), end, Value::none());
  size_t at = kFromRight ? part.text().rfind(needle) : part.text().find(needle);
  if (at == std::string::npos) {
    SINTER_CHECK(!kMustExist, "index: the text has no {}", short_repr(Value(needle)));
    return -1;
  }
  int64_t size = runtime.length(self);
  int64_t first = begin < 0 ? std::max<int64_t>(0, size + begin) : begin;
  return first + static_cast<int64_t>(num_code_points(std::string_view(part.text()).substr(0, at)));
}

Value text_count(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "count");
  std::string needle = reader.require_text("sub");
  reader.finish();
  runtime.charge(self.text().size() * (needle.size() + 4) / 256);
  if (needle.empty()) return runtime.length(self) + 1;
  int64_t count = 0;
  for (size_t at = self.text().find(needle); at != std::string::npos;
       at = self.text().find(needle, at + needle.size())) {
    ++count;
  }
  return count;
}

Value text_replace(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "replace");
  std::string from = reader.require_text("old"), to = reader.require_text("new");
  int64_t count = reader.get_integer("count", -1);
  reader.finish();
  return replace_text(runtime, self.text(), from, to, count);
}

template <std::string (*kChange)(std::string_view)>
Value text_change(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "the method").finish();
  runtime.charge_walk(self.text().size());
  return marked_as(self, kChange(self.text()));
}

int32_t code_of(std::string_view point) {
  utf8proc_int32_t code = -1;
  utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(point.data()), static_cast<utf8proc_ssize_t>(point.size()),
                   &code);
  return code;
}

bool is_letter(std::string_view point) {
  auto category = utf8proc_category(code_of(point));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(std::string_view point) { return utf8proc_category(code_of(point)) == UTF8PROC_CATEGORY_ND; }
bool is_letter_or_digit(std::string_view point) {
  auto category = utf8proc_category(code_of(point));
  return is_letter(point) || (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO);
}

template <bool (*kHolds)(std::string_view)>
Value text_all(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "the method").finish();
  runtime.charge_walk(self.text().size());
  bool holds = !self.text().empty();
  each_code_point(self.text(), [&](std::string_view point) { holds = holds && kHolds(point); });
  return holds;
}

// isupper and islower: at least one cased character, and none of the other case.
template <std::string (*kChange)(std::string_view), std::string (*kOther)(std::string_view)>
Value text_is_case(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader(arguments, "the method").finish();
  runtime.charge_walk(self.text().size());
  return kChange(self.text()) == self.text() && kOther(self.text()) != self.text();
}

std::string title(std::string_view text) {
  std::string out;
  bool in_word = false;
  each_code_point(text, [&](std::string_view point) {
    out += in_word ? to_lower(point) : to_upper(point);
    in_word = is_letter(point);
  });
  return out;
}

std::string swap_case(std::string_view text) {
  std::string out;
  each_code_point(text, [&](std::string_view point) {
    std::string upper = to_upper(point);
    out += upper == point ? to_lower(point) : upper;
  });
  return out;
}

Value text_join(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "join");
  Value items = reader.require("iterable");
  reader.finish();
  std::string out;
  bool is_first = true;
  for (const Value& item : runtime.iterate(items)) {
    SINTER_CHECK(item.is(Kind::text), "str.join takes texts, found a {}", type_name(item));
    if (!is_first) out += self.text();
    out += item.text();
    is_first = false;
    runtime.charge_text(item.text().size() + self.text().size());
    runtime.check_size(out.size());
  }
  runtime.charge_text(out.size());
  return out;
}

Value text_split_lines(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "splitlines");
  bool keep_ends = reader.get_flag("keepends", false);
  reader.finish();
  runtime.charge_walk(self.text().size());
  std::vector<Value> lines;
  for (std::string_view line : split_lines(self.text(), keep_ends)) lines.emplace_back(line);
  return make_list(std::move(lines));
}

template <bool kFromRight>
Value text_partition(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "partition");
  std::string separator = reader.require_text("sep");
  reader.finish();
  runtime.charge(self.text().size() * (separator.size() + 4) / 256);
  SINTER_CHECK(!separator.empty(), "partition needs a separator that is not empty");
  const std::string& text = self.text();
  size_t at = kFromRight ? text.rfind(separator) : text.find(separator);
  if (at == std::string::npos) return kFromRight ? make_tuple({"", "", self}) : make_tuple({self, "", ""});
  return make_tuple({Value(text.substr(0, at)), Value(separator), Value(text.substr(at + separator.size()))});
}

template <bool kPrefix>
Value text_remove_affix(Runtime&, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, kPrefix ? "removeprefix" : "removesuffix");
  std::string affix = reader.require_text("affix");
  reader.finish();
  const std::string& text = self.text();
  if (kPrefix) return text.starts_with(affix) ? Value(text.substr(affix.size())) : self;
  return text.ends_with(affix) ? Value(text.substr(0, text.size() - affix.size())) : self;
}

// center, ljust, rjust by how much of the padding goes left: half, none, all.
template <int kSide>
Value text_justify(Runtime& runtime, const Value& self, const Arguments& arguments) {
  ArgumentReader reader(arguments, "the method");
  int64_t width = reader.get_integer("width", 0);
  std::string fill = reader.get_text("fillchar", kSide == 3 ? "0" : " ");
  reader.finish();
  int64_t padding = width - runtime.length(self);
  if (padding <= 0) return self;
  SINTER_CHECK(padding <= int64_t{1} << 32, "a text is to be made {} characters wide and was stopped", width);
  runtime.charge_text(static_cast<size_t>(padding) * fill.size() + self.text().size());
  // CPython's center puts the odd cell left when padding and width are both odd.
  int64_t left = kSide == 0 ? padding / 2 + (padding & width & 1) : kSide == 1 ? 0 : padding;
  std::string text = self.text(), head, out;
  if (kSide == 3 && !text.empty() && (text[0] == '-' || text[0] == '+')) {  // zfill keeps the sign in front
    head = text.substr(0, 1);
    text.erase(0, 1);
  }
  out = head;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += text;
  for (int64_t i = left; i < padding; ++i) out += fill;
  return out;
}

Value text_format(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return format_braces(runtime, self.text(), arguments);
}

}  // namespace

const MethodTable& text_methods() {
  static const MethodTable table{
      {"strip", text_strip<true, true>},
      {"lstrip", text_strip<true, false>},
      {"rstrip", text_strip<false, true>},
      {"split", text_split<false>},
      {"rsplit", text_split<true>},
      {"splitlines", text_split_lines},
      {"startswith", text_has_affix<true>},
      {"endswith", text_has_affix<false>},
      {"find", text_find<false, false>},
      {"rfind", text_find<true, false>},
      {"index", text_find<false, true>},
      {"rindex", text_find<true, true>},
      {"count", text_count},
      {"replace", text_replace},
      {"upper", text_change<to_upper>},
      {"lower", text_change<to_lower>},
      {"casefold", text_change<to_lower>},
      {"title", text_change<title>},
      {"capitalize", text_change<capitalize>},
      {"swapcase", text_change<swap_case>},
      {"join", text_join},
      {"partition", text_partition<false>},
      {"rpartition", text_partition<true>},
      {"removeprefix", text_remove_affix<true>},
      {"removesuffix", text_remove_affix<false>},
      {"center", text_justify<0>},
      {"ljust", text_justify<1>},
      {"rjust", text_justify<2>},
      {"zfill", text_justify<3>},
      {"format", text_format},
      {"isalpha", text_all<is_letter>},
      {"isdigit", text_all<is_decimal>},
      {"isdecimal", text_all<is_decimal>},
      {"isnumeric", text_all<is_decimal>},
      {"isalnum", text_all<is_letter_or_digit>},
      {"isspace", text_all<is_space>},
      {"isupper", text_is_case<to_upper, to_lower>},
      {"islower", text_is_case<to_lower, to_upper>},
  };
  return table;
}

}  // namespace sinter::tokenizer::jinja
