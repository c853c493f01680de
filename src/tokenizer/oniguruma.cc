#include "tokenizer/oniguruma.h"

#include <vector>

#include "base/error.h"

namespace sinter::tokenizer {
namespace {

constexpr std::string_view kWord = R"(\p{L}\p{M}\p{N}\p{Pc})", kHex = "0-9A-Fa-f";

class Translator {
 public:
  Translator(std::string_view pattern, const std::string& origin) : pattern_(pattern), origin_(origin) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        take_escape();
      } else if (c == '[') {
        atom_ = out_.size();
        take_class();
      } else if (c == '(') {
        groups_.push_back(out_.size());
        copy(1);
      } else if (c == ')') {
        copy(1);
        if (groups_.empty()) continue;  // PCRE2 will tell
        atom_ = groups_.back();
        groups_.pop_back();
      } else if (c == '{') {
        take_count();
      } else {
        if (std::string_view("*+?|^$").find(c) == std::string_view::npos) atom_ = out_.size();
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  void copy(size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += std::min(count, pattern_.size() - at_);
  }

  // Outside of a class. The whole of \p{..}, \x{..} and the like is one atom.
  void take_escape() {
    atom_ = out_.size();
    const char c = at_ + 1 < pattern_.size() ? pattern_[at_ + 1] : '\0';
    auto replace = [&](std::string_view open, std::string_view set) {
      out_.append(open).append(set).append("]");
      at_ += 2;
    };
    if (c == 'w') return replace("[", kWord);
    if (c == 'W') return replace("[^", kWord);
    if (c == 'h') return replace("[", kHex);
    if (c == 'H') return replace("[^", kHex);
    const bool has_braces =
        std::string_view("pPxkg").find(c) != std::string_view::npos && pattern_.substr(at_ + 2, 1) == "{";
    const size_t end = has_braces ? pattern_.find('}', at_) : std::string_view::npos;
    copy(end == std::string_view::npos ? 2 : end + 1 - at_);
  }

  void take_class() {
    copy(1);
    if (pattern_.substr(at_, 1) == "^") copy(1);
    if (pattern_.substr(at_, 1) == "]") copy(1);  // at the beginning it is itself
    while (at_ < pattern_.size() && pattern_[at_] != ']') {
      const std::string_view two = pattern_.substr(at_, 2);
      SINTER_CHECK(two != "&&",
                   "{}: the regular expression '{}' intersects classes (&& at byte {}), which is not supported",
                   origin_, pattern_, at_);
      SINTER_CHECK(two != "\\W" && two != "\\H",
                   "{}: the regular expression '{}' has '{}' in a class at byte {}, which is not supported; write the "
                   "class the other way round",
                   origin_, pattern_, two, at_);
      if (two == "\\w" || two == "\\h") {
        out_ += two == "\\w" ? kWord : kHex;
        at_ += 2;
      } else if (two[0] == '\\') {
        copy(2);
      } else if (two == "[:") {
        const size_t end = pattern_.find(":]", at_);
        copy(end == std::string_view::npos ? 1 : end + 2 - at_);
      } else {
        SINTER_CHECK(two[0] != '[',
                     "{}: the regular expression '{}' has a class in a class at byte {}, which is not "
                     "supported",
                     origin_, pattern_, at_);
        copy(1);
      }
    }
    copy(1);
  }

  // {n}, {n,}, {,m} or {n,m}; anything else is text.
  void take_count() {
    const size_t end = pattern_.find('}', at_);
    const std::string_view inside =
        end == std::string_view::npos ? std::string_view() : pattern_.substr(at_ + 1, end - at_ - 1);
    const bool is_count =
        !inside.empty() && inside != "," && inside.find_first_not_of("0123456789,") == std::string_view::npos;
    if (!is_count) {
      atom_ = out_.size();
      return copy(1);
    }
    const bool repeats = pattern_.substr(end + 1, 1) == "+";
    if (repeats) out_.insert(atom_, "(?:");
    out_.append("{").append(inside.starts_with(',') ? "0" : "").append(inside).append("}");
    at_ = end + 1;
    if (repeats) out_ += ")";  // and the + behind it
  }

  const std::string_view pattern_;
  const std::string& origin_;
  size_t at_ = 0, atom_ = 0;  // where the pattern is read; where in `out_` that begins which a count would repeat
  std::vector<size_t> groups_;
  std::string out_;
};

}  // namespace

std::string oniguruma_to_pcre2(std::string_view pattern, const std::string& origin) {
  return Translator(pattern, origin).run();
}

}  // namespace sinter::tokenizer
