#include "eval/metrics/text_overlap.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "eval/tasks/python_regex.h"
#include "tokenizer/jinja/value.h"
#include "tokenizer/unicode.h"

namespace sinter::eval {
namespace {

namespace jinja = tokenizer::jinja;

std::vector<std::string> split_words(std::string_view text) {
  std::vector<std::string> words;
  bool in_word = false;
  jinja::each_code_point(text, [&](std::string_view point) {
    if (jinja::is_space(point)) {
      in_word = false;
      return;
    }
    if (!in_word) words.emplace_back();
    words.back() += point;
    in_word = true;
  });
  return words;
}

std::vector<std::string> squad_words(const std::string& text) {
  std::string plain = tokenizer::lowercase_unicode(text);
  constexpr std::string_view kPunctuation = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
  std::erase_if(plain, [&](char c) { return kPunctuation.find(c) != std::string_view::npos; });
  static const PythonRegex kArticles(R"(\b(a|an|the)\b)");
  return split_words(kArticles.replace(plain, " "));
}

// The rules of mteval-v13a for Western text.
std::vector<std::string> tokenize_13a(std::string text) {
  static const PythonRegex kSymbols(R"(([\{-\~\[-\` -\&\(-\+\:-\@\/]))"), kBefore(R"(([^0-9])([\.,]))"),
      kBehind(R"(([\.,])([^0-9]))"), kDash(R"(([0-9])(-))"), kSkipped("<skipped>"), kHyphen("-\n"), kNewline("\n");
  text = kNewline.replace(kHyphen.replace(kSkipped.replace(text, ""), ""), " ");
  for (const auto& [from, to] : {std::pair{"&quot;", "\""}, {"&amp;", "&"}, {"&lt;", "<"}, {"&gt;", ">"}}) {
    text = PythonRegex(from).replace(text, to);
  }
  text = " " + text + " ";
  text = kSymbols.replace(text, R"( \1 )");
  text = kBefore.replace(text, R"(\1 \2 )");
  text = kBehind.replace(text, R"( \1 \2)");
  return split_words(kDash.replace(text, R"(\1 \2 )"));
}

template <class Item>
std::map<std::vector<Item>, int64_t> count_ngrams(const std::vector<Item>& items, size_t n) {
  std::map<std::vector<Item>, int64_t> counts;
  for (size_t i = 0; i + n <= items.size(); ++i) {
    ++counts[std::vector<Item>(items.begin() + static_cast<ptrdiff_t>(i),
                               items.begin() + static_cast<ptrdiff_t>(i + n))];
  }
  return counts;
}

template <class Map>
int64_t overlap(const Map& a, const Map& b) {
  int64_t both = 0;
  for (const auto& [key, count] : a) {
    if (auto found = b.find(key); found != b.end()) both += std::min(count, found->second);
  }
  return both;
}

template <class Map>
int64_t total(const Map& counts) {
  int64_t sum = 0;
  for (const auto& [key, count] : counts) sum += count;
  return sum;
}

}  // namespace

double token_f1(const std::string& answer, const std::string& target) {
  const auto a = count_ngrams(squad_words(answer), 1), b = count_ngrams(squad_words(target), 1);
  const int64_t na = total(a), nb = total(b);
  if (na == 0 || nb == 0) return na == nb ? 1 : 0;
  const auto both = static_cast<double>(overlap(a, b));
  if (both == 0) return 0;
  const double precision = both / static_cast<double>(na), recall = both / static_cast<double>(nb);
  return 2 * precision * recall / (precision + recall);
}

double sentence_bleu(const std::string& answer, const std::string& target) {
  const std::vector<std::string> a = tokenize_13a(answer), b = tokenize_13a(target);
  if (a.empty()) return 0;
  double log_sum = 0, smooth = 1;
  size_t order = 0;  // effective: n-grams that the answer is long enough for
  for (size_t n = 1; n <= 4; ++n) {
    const auto own = count_ngrams(a, n);
    const int64_t count = total(own);
    if (count == 0) break;
    order = n;
    auto both = static_cast<double>(overlap(own, count_ngrams(b, n)));
    if (both == 0) {
      if (n == 1) return 0;
      smooth *= 2;
      both = 1 / smooth;
    }
    log_sum += std::log(both / static_cast<double>(count));
  }
  const double length = static_cast<double>(a.size()), wanted = static_cast<double>(b.size());
  const double brevity = length < wanted ? std::exp(1 - wanted / length) : 1;
  return 100 * brevity * std::exp(log_sum / static_cast<double>(order));
}

double sentence_chrf(const std::string& answer, const std::string& target) {
  auto characters = [](const std::string& text) {
    std::vector<std::string> points;
    jinja::each_code_point(text, [&](std::string_view point) {
      if (!jinja::is_space(point)) points.emplace_back(point);
    });
    return points;
  };
  const std::vector<std::string> a = characters(answer), b = characters(target);
  double precision = 0, recall = 0;
  int order = 0;
  for (size_t n = 1; n <= 6; ++n) {
    const auto own = count_ngrams(a, n), wanted = count_ngrams(b, n);
    const int64_t count_a = total(own), count_b = total(wanted);
    if (count_a == 0 || count_b == 0) continue;
    const auto both = static_cast<double>(overlap(own, wanted));
    precision += both / static_cast<double>(count_a);
    recall += both / static_cast<double>(count_b);
    ++order;
  }
  if (order == 0) return 0;
  precision /= order;
  recall /= order;
  constexpr double kFactor = 4;  // beta squared
  const double below = kFactor * precision + recall;
  return below > 0 ? 100 * (1 + kFactor) * precision * recall / below : 0;
}

}  // namespace sinter::eval
