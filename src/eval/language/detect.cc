#include "eval/language/detect.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>
#include <unordered_map>

#include "eval/language/data.h"
#include "eval/tasks/python_random.h"
#include "eval/tasks/python_regex.h"
#include "tokenizer/jinja/runtime.h"
#include "tokenizer/unicode.h"

namespace sinter::eval {
namespace {

namespace jinja = tokenizer::jinja;

constexpr size_t kMaxLength = 10000;
constexpr int kTrials = 7, kMostDraws = 1000;
constexpr double kAlpha = .5, kAlphaWidth = .05, kBase = 10000, kSure = .99999, kLeast = .1;

std::u32string decode(std::string_view text) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    const tokenizer::Char c = tokenizer::decode_char(text, at);
    out += static_cast<char32_t>(c.code);
    at += c.length;
  }
  return out;
}

bool is_upper(char32_t c) {
  if (c < 128) return c >= 'A' && c <= 'Z';
  std::string one;
  tokenizer::append_utf8(one, c);
  return jinja::to_upper(one) == one && jinja::to_lower(one) != one;
}

struct Profiles {
  std::vector<std::string> names;
  std::vector<std::array<double, 3>> sums;
  struct Share {
    uint32_t language;
    double probability;
  };
  std::unordered_map<std::u32string, std::vector<Share>> grams;
  std::u32string blanks, bases, marks;
  std::vector<std::u32string> composed;  // by mark, a letter for each base
  std::unordered_map<char32_t, char32_t> same;

  Profiles() {
    read_language_data(LanguageData::profiles, [this](const std::vector<std::string_view>& cells) { add(cells); });
  }
  void add(const std::vector<std::string_view>& cells) {
    auto number = [&](size_t i) {
      int64_t value = 0;
      std::from_chars(cells[i].data(), cells[i].data() + cells[i].size(), value);
      return value;
    };
    if (cells[0] == "gram") {
      std::u32string gram = decode(cells[1]);
      std::vector<Share>& shares = grams[gram];
      for (size_t i = 2; i + 1 < cells.size(); i += 2) {
        const auto language = static_cast<uint32_t>(number(i));
        shares.push_back({language, static_cast<double>(number(i + 1)) / sums[language][gram.size() - 1]});
      }
    } else if (cells[0] == "profile") {
      names.emplace_back(cells[1]);
      sums.push_back({double(number(2)), double(number(3)), double(number(4))});
    } else if (cells[0] == "same") {
      const std::u32string all = decode(cells[1]);
      for (char32_t c : all) same[c] = all[0];
    } else if (cells[0] == "blank") {
      blanks = decode(cells[1]);
    } else {
      bases = decode(cells[1]);
      marks = decode(cells[2]);
      for (size_t i = 3; i < cells.size(); ++i) composed.push_back(decode(cells[i]));
    }
  }
  // A letter as the n-grams have it: what is no letter becomes a blank, some scripts one letter each.
  char32_t normalize(char32_t c) const {
    auto is_between = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
    if (c < 0x80) return is_between('A', 'Z') || is_between('a', 'z') ? c : U' ';
    if (c < 0x100) return blanks.find(c) != std::u32string::npos ? U' ' : c;
    if (c == 0x219) return 0x15f;  // Romanian, with a comma below: as with a cedilla
    if (c == 0x21b) return 0x163;
    if (is_between(0x2000, 0x206f)) return U' ';
    if (c == 0x6cc) return 0x64a;                   // Farsi yeh
    if (is_between(0x1ea0, 0x1eff)) return 0x1ec3;  // Vietnamese
    if (is_between(0x3040, 0x309f)) return 0x3042;  // Hiragana
    if (is_between(0x30a0, 0x30ff)) return 0x30a2;  // Katakana
    if (is_between(0x3100, 0x312f) || is_between(0x31a0, 0x31bf)) return 0x3105;
    if (is_between(0xac00, 0xd7af)) return 0xac00;  // Hangul
    if (is_between(0x4e00, 0x9fff)) {
      const auto found = same.find(c);
      return found == same.end() ? c : found->second;
    }
    return c;
  }
};

const Profiles& profiles() {
  static const Profiles kProfiles;
  return kProfiles;
}

// Without addresses, with composed letters, blanks in a row as one.
std::u32string clean(std::string_view text, const Profiles& p) {
  static const PythonRegex kUrl(R"(https?://[-_.?&~;+=/#0-9A-Za-z]{1,2076})"),
      kMail(R"([-_.0-9A-Za-z]{1,64}@[-_0-9A-Za-z]{1,255}[-_.0-9A-Za-z]{1,255})");
  const std::u32string all = decode(kMail.replace(kUrl.replace(text, " "), " "));
  std::u32string letters;
  for (size_t i = 0; i < all.size(); ++i) {
    const size_t mark = i + 1 < all.size() ? p.marks.find(all[i + 1]) : std::u32string::npos;
    const size_t base = mark != std::u32string::npos ? p.bases.find(all[i]) : std::u32string::npos;
    letters += base == std::u32string::npos ? all[i] : p.composed[mark][base];
    if (base != std::u32string::npos) ++i;
  }
  std::u32string out;
  char32_t last = 0;
  size_t num_latin = 0, num_other = 0;
  for (char32_t c : std::u32string_view(letters).substr(0, kMaxLength)) {
    if (c != ' ' || last != ' ') {
      out += c;
      num_latin += c >= 'A' && c <= 'z';
      num_other += c >= 0x300 && (c < 0x1e00 || c > 0x1eff);
    }
    last = c;
  }
  if (num_latin * 2 < num_other) std::erase_if(out, [](char32_t c) { return c >= 'A' && c <= 'z'; });
  return out;
}

using Shares = std::vector<Profiles::Share>;

// The n-grams of the text that some language has; those of words in capitals are left out.
std::vector<const Shares*> find_grams(const std::u32string& text, const Profiles& p) {
  std::vector<const Shares*> found;
  std::u32string window = U" ";
  bool is_capital_word = false;
  for (char32_t raw : text) {
    const char32_t c = p.normalize(raw), last = window.back();
    if (last == ' ') {
      window = U" ";
      is_capital_word = false;
      if (c == ' ') continue;
    } else if (window.size() >= 3) {
      window.erase(0, 1);
    }
    window += c;
    if (!is_upper(c)) {
      is_capital_word = false;
    } else if (is_upper(last)) {
      is_capital_word = true;
    }
    if (is_capital_word) continue;
    for (size_t n = 1; n <= window.size(); ++n) {
      const std::u32string gram = window.substr(window.size() - n);
      if (gram == U" ") continue;
      if (const auto at = p.grams.find(gram); at != p.grams.end()) found.push_back(&at->second);
    }
  }
  return found;
}

// Python's random.gauss(0, 1): two values from two draws.
class Gauss {
 public:
  explicit Gauss(PythonRandom& random) : random_(random) {}
  double next() {
    if (std::exchange(has_kept_, false)) return kept_;
    const double angle = random_.random() * 2 * std::numbers::pi;
    const double radius = std::sqrt(-2 * std::log(1 - random_.random()));
    kept_ = std::sin(angle) * radius;
    has_kept_ = true;
    return std::cos(angle) * radius;
  }

 private:
  PythonRandom& random_;
  double kept_ = 0;  // of the pair drawn last
  bool has_kept_ = false;
};

}  // namespace

std::optional<std::vector<LanguageGuess>> guess_languages(std::string_view text) {
  const Profiles& p = profiles();
  const std::vector<const Shares*> grams = find_grams(clean(text, p), p);
  if (grams.empty()) return std::nullopt;
  const size_t n = p.names.size();
  std::vector<double> mean(n, 0), factor(n);
  PythonRandom random(0);
  Gauss gauss(random);
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> probability(n, 1.0 / static_cast<double>(n));
    const double weight = (kAlpha + gauss.next() * kAlphaWidth) / kBase;
    for (int draw = 0;; ++draw) {
      std::fill(factor.begin(), factor.end(), weight);
      for (const auto& share : *grams[random.below(static_cast<uint32_t>(grams.size()))]) {
        factor[share.language] += share.probability;
      }
      for (size_t i = 0; i < n; ++i) probability[i] *= factor[i];
      if (draw % 5 != 0) continue;
      double sum = 0, most = 0;
      for (double x : probability) sum += x;
      for (double& x : probability) most = std::max(most, x /= sum);
      if (most > kSure || draw >= kMostDraws) break;
    }
    for (size_t i = 0; i < n; ++i) mean[i] += probability[i] / kTrials;
  }
  std::vector<LanguageGuess> guesses;
  for (size_t i = 0; i < n; ++i) {
    if (mean[i] > kLeast) guesses.push_back({p.names[i], mean[i]});
  }
  std::stable_sort(guesses.begin(), guesses.end(),
                   [](const LanguageGuess& a, const LanguageGuess& b) { return a.probability > b.probability; });
  return guesses;
}

bool is_in_language(std::string_view text, std::string_view name) {
  const auto guesses = guess_languages(text);
  if (!guesses) return true;
  return (guesses->empty() ? std::string_view("unknown") : guesses->front().name) == name;
}

}  // namespace sinter::eval
