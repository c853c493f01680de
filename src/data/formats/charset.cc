#include "data/formats/charset.h"

#include <iconv.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdint>

#include "data/text/characters.h"
#include "tokenizer/unicode.h"

namespace sinter::data {
namespace {

std::string lower_ascii(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// The WHATWG's reading of labels: what pages call Latin-1 is windows-1252, and so on.
std::string canonical(std::string_view label) {
  const std::string name = lower_ascii(strip(label));
  struct Alias {
    const char *from, *to;
  };
  static constexpr Alias kAliases[] = {{"iso-8859-1", "windows-1252"}, {"iso8859-1", "windows-1252"},
                                       {"latin1", "windows-1252"},     {"latin-1", "windows-1252"},
                                       {"us-ascii", "windows-1252"},   {"ascii", "windows-1252"},
                                       {"cp1252", "windows-1252"},     {"iso-8859-9", "windows-1254"},
                                       {"gb2312", "gb18030"},          {"gbk", "gb18030"},
                                       {"x-gbk", "gb18030"},           {"shift-jis", "shift_jis"},
                                       {"sjis", "shift_jis"},          {"x-sjis", "shift_jis"},
                                       {"windows-31j", "shift_jis"},   {"ks_c_5601-1987", "euc-kr"},
                                       {"big5-hkscs", "big5"},         {"utf8", "utf-8"},
                                       {"utf-16", "utf-16le"},         {"x-euc-jp", "euc-jp"}};
  for (const Alias& a : kAliases) {
    if (name == a.from) return a.to;
  }
  return name;
}

// iconv's name: the supersets that browsers use.
std::string iconv_name(const std::string& charset) {
  if (charset == "shift_jis") return "CP932";
  if (charset == "euc-kr") return "CP949";
  if (charset == "big5") return "BIG5-HKSCS";
  return charset;
}

class Converter {
 public:
  explicit Converter(const std::string& charset) : handle_(::iconv_open("UTF-8", charset.c_str())) {}
  ~Converter() {
    if (is_open()) ::iconv_close(handle_);
  }
  Converter(const Converter&) = delete;
  Converter& operator=(const Converter&) = delete;
  bool is_open() const { return handle_ != reinterpret_cast<iconv_t>(-1); }
  // The text and the number of bytes that could not be decoded.
  int64_t convert(std::string_view bytes, std::string& out) const {
    std::array<char, 8192> buffer;
    char* in = const_cast<char*>(bytes.data());
    size_t left = bytes.size();
    int64_t bad = 0;
    while (left > 0) {
      char* to = buffer.data();
      size_t room = buffer.size();
      const size_t status = ::iconv(handle_, &in, &left, &to, &room);
      out.append(buffer.data(), buffer.size() - room);
      if (status != static_cast<size_t>(-1) || errno == E2BIG) continue;
      out += "\xef\xbf\xbd";
      ++bad;
      ++in;
      --left;
    }
    return bad;
  }

 private:
  iconv_t handle_;
};

// How much like writing a decoded text looks: letters of one script in their usual case and company score, control
// characters, private use and mixtures of scripts cost.
double plausibility(std::string_view text, std::string_view charset) {
  const CharFlags flags;
  double score = 0, count = 0;
  uint32_t last = 0, last_flags = 0;
  auto script = [](uint32_t c) {
    if (c < 0x250) return 1;
    if (c >= 0x370 && c < 0x400) return 2;
    if (c >= 0x400 && c < 0x530) return 3;
    if (c >= 0x590 && c < 0x600) return 4;
    if (c >= 0x600 && c < 0x780) return 5;
    if (c >= 0xe00 && c < 0xe80) return 6;
    if (c >= 0x3040 && c < 0x3100) return 7;
    if (c >= 0xac00 && c < 0xd7b0) return 8;
    if (c >= 0x4e00 && c < 0xa000) return 9;
    return 0;
  };
  for (size_t pos = 0; pos < text.size();) {
    const uint32_t c = next_char(text, pos);
    const uint32_t f = flags(c);
    if (c >= 128) {
      count += 1;
      const int s = script(c);
      if (c == 0xfffd) {
        score -= 8;
      } else if ((c >= 0x80 && c < 0xa0) || (c >= 0xe000 && c < 0xf900)) {
        score -= 4;
      } else if (f & kLetterChar) {
        score += s == 0 ? -1 : 1;
        const bool is_rare_latin =
            s == 1 && std::string_view("\xc3\x90\xc3\xbe\xc3\x9e\xc3\xb0").find(text.substr(pos - 2, 2)) !=
                          std::string_view::npos;
        if (is_rare_latin) score -= 1;
        // Letters of two scripts side by side, and capitals inside words.
        if (last_flags & kLetterChar) {
          if (script(last) != s && !(s >= 7 && script(last) >= 7)) score -= 1.5;
          if ((f & kUpperLetter) && (last_flags & kCased) && !(last_flags & kUpperLetter)) score -= 2;
        }
        if (s == 7)
          score += charset == "gb18030" || charset == "big5" ? -2 : 1;  // both have kana, which Chinese does not use
        if (s == 8) score += .2;
        if (s == 9 && charset != "gb18030" && charset != "big5") score -= .1;
      } else if (c == 0x2019 || c == 0x2018 || c == 0x201c || c == 0x201d || c == 0xab || c == 0xbb || c == 0x2013 ||
                 c == 0x2014 || c == 0x2026 || c == 0xbf || c == 0xa1 || (c >= 0x3000 && c < 0x3040) ||
                 (c >= 0xff00 && c < 0xff5f) || c == 0xa0) {
        score += .6;
      } else {
        score -= .7;
      }
    }
    last = c;
    last_flags = f;
  }
  return count > 0 ? score / count : 0;
}

// The commonest characters of Chinese: a text in the wrong one of two Han charsets has few of them.
double common_han(std::string_view text) {
  static constexpr std::string_view kCommon =
      "的一是不了在人有我他这這个個们們中来來上大为為和国國地到以说說时時要就出会會可也你对對生能而子那得于於着著下自之"
      "年过過发發后後作里裡用道行所然家种種事成方多经經么麼去法学學如都同现現当當没沒动動面起看定天分还還进進好小部其些"
      "主样樣理心她本前开開但因只从從想实實日很他每早";
  int64_t han = 0, common = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    const uint32_t c = next_char(text, pos);
    if (c < 0x4e00 || c > 0x9fff) continue;
    ++han;
    common += kCommon.find(text.substr(at, pos - at)) != std::string_view::npos;
  }
  return han > 0 ? static_cast<double>(common) / static_cast<double>(han) : 0;
}

// Letters that are frequent in the languages written in a single-byte charset, so that charsets of one script differ.
double common_letters(std::string_view text, std::string_view charset) {
  std::string_view common;
  if (charset == "koi8-r" || charset == "windows-1251" || charset == "iso-8859-5") common = "оеаинтсрвлкмдпу";
  if (charset == "iso-8859-2" || charset == "windows-1250") common = "ąćęłńóśźżáčďéěíňřšťúůýžőűöüä";
  if (charset == "windows-1252" || charset == "iso-8859-15") common = "éèàêçîôûùëïœáíóúñüöäßåøæ¿¡";
  if (charset == "iso-8859-7" || charset == "windows-1253") common = "αοιετνσηρκπμλςυ";
  if (charset == "windows-1254") common = "ığşçöüİ";
  if (common.empty()) return 0;
  int64_t letters = 0, found = 0;
  const CharFlags flags;
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    const uint32_t c = next_char(text, pos);
    if (c < 128 || !(flags(c) & kLetterChar)) continue;
    ++letters;
    found += common.find(text.substr(at, pos - at)) != std::string_view::npos;
  }
  return letters > 0 ? static_cast<double>(found) / static_cast<double>(letters) : 0;
}

bool looks_like_utf16(std::string_view bytes, bool& is_big) {
  const size_t n = std::min<size_t>(bytes.size(), 2000) & ~size_t{1};
  if (n < 16) return false;
  size_t even = 0, odd = 0;
  for (size_t i = 0; i < n; i += 2) {
    even += bytes[i] == 0;
    odd += bytes[i + 1] == 0;
  }
  is_big = even > odd;
  return std::max(even, odd) > n / 2 * 6 / 10 && std::min(even, odd) < n / 40 + 1;
}

}  // namespace

bool decode_as(std::string_view bytes, std::string_view label, Decoded& out) {
  const std::string charset = canonical(label);
  if (charset.empty()) return false;
  if (charset == "utf-8") {
    out.text = to_valid_utf8(bytes);
    out.has_bad_bytes = out.text.size() != bytes.size();
    out.charset = charset;
    return true;
  }
  const Converter converter(iconv_name(charset));
  if (!converter.is_open()) return false;
  std::string text;
  out.has_bad_bytes = converter.convert(bytes, text) > 0;
  out.text = tokenizer::is_valid_utf8(text) ? std::move(text) : to_valid_utf8(text);
  out.charset = charset;
  return true;
}

std::string meta_charset(std::string_view bytes) {
  const std::string head = lower_ascii(bytes.substr(0, 4096));
  for (size_t meta = head.find("<meta"); meta != std::string::npos; meta = head.find("<meta", meta + 5)) {
    const size_t end = std::min(head.find('>', meta), head.size());
    const std::string_view tag(head.data() + meta, end - meta);
    size_t at = tag.find("charset");
    if (at == std::string_view::npos) continue;
    at = tag.find_first_not_of(" \t\r\n", at + 7);
    if (at == std::string_view::npos || tag[at] != '=') continue;
    at = tag.find_first_not_of(" \t\r\n\"'", at + 1);
    if (at == std::string_view::npos) continue;
    return std::string(tag.substr(at, tag.find_first_of(" \t\r\n\"';/>", at) - at));
  }
  return "";
}

std::string detect_charset(std::string_view bytes) {
  bool is_big = false;
  if (looks_like_utf16(bytes, is_big)) return is_big ? "utf-16be" : "utf-16le";
  static constexpr std::string_view kCandidates[] = {
      "windows-1252", "shift_jis",  "euc-jp",       "gb18030",    "big5",         "euc-kr",    "windows-1251",
      "koi8-r",       "iso-8859-2", "windows-1250", "iso-8859-7", "windows-1254", "iso-8859-5"};
  // Enough of the page to judge by, from where it stops being ASCII.
  const auto first =
      std::find_if(bytes.begin(), bytes.end(), [](char c) { return static_cast<unsigned char>(c) >= 128; });
  const size_t from = static_cast<size_t>(first - bytes.begin());
  const std::string_view sample = bytes.substr(from, 20000);
  std::string best = "windows-1252";
  double best_score = -1e9;
  for (std::string_view candidate : kCandidates) {
    Decoded decoded;
    if (!decode_as(sample, candidate, decoded)) continue;
    double score = plausibility(decoded.text, candidate) + common_letters(decoded.text, candidate);
    if (candidate == "windows-1252") score += .05;  // the most frequent by far
    if (candidate == "gb18030" || candidate == "big5") score += 2 * common_han(decoded.text);
    if (score > best_score + 1e-9) {
      best_score = score;
      best = candidate;
    }
  }
  return best;
}

Decoded decode_page(std::string_view bytes, std::string_view declared) {
  Decoded out;
  if (bytes.starts_with("\xef\xbb\xbf") && tokenizer::is_valid_utf8(bytes)) {
    out.text = std::string(bytes.substr(3));
    out.charset = "utf-8";
    return out;
  }
  if (bytes.starts_with("\xff\xfe") && decode_as(bytes.substr(2), "utf-16le", out)) return out;
  if (bytes.starts_with("\xfe\xff") && decode_as(bytes.substr(2), "utf-16be", out)) return out;
  bool is_big = false;
  const bool is_wide = looks_like_utf16(bytes, is_big);
  if (!is_wide && tokenizer::is_valid_utf8(bytes)) {
    out.text = std::string(bytes);
    out.charset = "utf-8";
    return out;
  }
  for (const std::string& label : {std::string(declared), meta_charset(bytes)}) {
    if (label.empty() || is_wide) continue;
    const std::string charset = canonical(label);
    // A page that declares UTF-8 and is not may have one bad byte, or another charset altogether.
    if (!decode_as(bytes, charset, out)) continue;
    const int64_t chars = std::max<int64_t>(count_chars(out.text), 1);
    int64_t bad = 0;
    for (size_t at = out.text.find("\xef\xbf\xbd"); at != std::string::npos; at = out.text.find("\xef\xbf\xbd", at + 3))
      ++bad;
    if (bad * 100 <= chars) return out;
  }
  decode_as(bytes, detect_charset(bytes), out);
  return out;
}

}  // namespace sinter::data
