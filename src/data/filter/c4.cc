#include <cstring>

#include "data/filter/text_rules.h"
#include "data/text/characters.h"

namespace sinter::data {
namespace {

bool has(std::string_view text, std::string_view what) {
  return ::memmem(text.data(), text.size(), what.data(), what.size()) != nullptr;
}

bool names_policy(std::string_view low) {
  if (has(low, "terms of use")) return true;
  if (has(low, "policy") && (has(low, "privacy policy") || has(low, "cookie policy"))) return true;
  return has(low, "cookies") && (has(low, "uses cookies") || has(low, "use of cookies") || has(low, "use cookies"));
}

// Words between white space, up to three, and whether one is longer than 1,000 characters.
struct LineWords {
  int64_t count = 0;
  bool has_giant = false;
};
LineWords look_at_words(std::string_view line) {
  const CharFlags flags;
  LineWords found;
  int64_t length = 0;
  for (size_t pos = 0; pos < line.size();) {
    if (flags(next_char(line, pos)) & kPythonSpace) {
      length = 0;
      continue;
    }
    if (++length == 1) ++found.count;
    if (length > 1000) found.has_giant = true;
    if (found.count >= 3 && line.size() <= 1000) break;
  }
  return found;
}

// Without [12], [edit] and [citation needed].
std::string_view without_citations(std::string_view line, std::string& scratch) {
  if (line.find('[') == std::string_view::npos) return line;
  const CharFlags flags;
  scratch.clear();
  for (size_t pos = 0; pos < line.size();) {
    size_t end = pos;
    if (line[pos] == '[') {
      const std::string_view rest = line.substr(pos);
      if (rest.starts_with("[edit]")) {
        end = pos + 6;
      } else if (rest.starts_with("[citation needed]")) {
        end = pos + 17;
      } else {
        size_t next = pos + 1;
        while (next < line.size()) {
          size_t behind = next;
          if (!(flags(next_char(line, behind)) & kDecimal)) break;
          next = behind;
        }
        if (next < line.size() && line[next] == ']') end = next + 1;
      }
    }
    if (end == pos) {
      scratch.push_back(line[pos]);
      end = pos + 1;
    }
    pos = end;
  }
  return scratch;
}

std::string_view lower_into(std::string_view line, std::string& scratch) {
  if (!is_ascii(line)) {
    scratch = lower(line);
    return scratch;
  }
  scratch.resize(line.size());
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    scratch[i] = static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  }
  return scratch;
}

bool ends_a_sentence(std::string_view line) {
  if (line.empty() || line.ends_with("...")) return false;
  return std::string_view(".?!\"'").find(line.back()) != std::string_view::npos;
}

}  // namespace

C4Result c4_rewrite(std::string_view text, const C4Options& options) {
  C4Result result;
  result.text.reserve(text.size());
  std::string cited, low;
  for (std::string_view line : split_lines(text)) {
    ++result.lines;
    line = strip(line);
    const LineWords words = look_at_words(line);
    if (words.has_giant) continue;
    line = without_citations(line, cited);
    if (options.needs_terminal && !ends_a_sentence(line)) continue;
    if (words.count < 3) continue;
    const std::string_view lowered = lower_into(line, low);
    if (has(lowered, "lorem ipsum")) {
      result.dies = "lorem_ipsum";
      return result;
    }
    if (has(lowered, "javascript")) continue;
    if (line.find('{') != std::string_view::npos) {
      result.dies = "curly_bracket";
      return result;
    }
    if (names_policy(lowered)) continue;
    result.sentences += count_sentences(line);
    if (result.kept_lines++ > 0) result.text.push_back('\n');
    result.text.append(line);
  }
  const std::string_view bare = strip(result.text);
  if (bare.size() != result.text.size()) result.text = std::string(bare);
  return result;
}

Verdict c4_quality(const C4Result& result, const RuleLimits& limits) {
  if (!result.dies.empty()) return {result.dies};
  if (static_cast<double>(result.sentences) < limits.min_sentences) return {"too_few_sentences"};
  return {};
}

}  // namespace sinter::data
