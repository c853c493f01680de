#include <utf8proc.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace sinter::tokenizer {
namespace {

constexpr int kMaxNesting = 16;

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior read_behavior(const JsonView& spec, std::string_view fallback) {
  std::string name = spec.string_or("behavior", fallback);
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  spec.at("behavior")
      .fail("'" + name + "' is not one of Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
}

// A stretch of a piece: a match of the pattern or what lies between matches.
struct Stretch {
  size_t begin, end;
  bool is_match;
};

// Appends to `out` the pieces that the stretches (in order, without gaps) become.
void join_stretches(const std::vector<Stretch>& stretches, Behavior behavior, std::vector<Piece>& out) {
  const size_t first = out.size();
  bool previous_match = false, open = false;
  auto extend_or_add = [&](const Stretch& s, bool extend) {
    if (extend && out.size() > first)
      out.back().end = s.end;
    else
      out.push_back({s.begin, s.end});
  };
  switch (behavior) {
    case Behavior::removed:
      for (const Stretch& s : stretches) {
        if (!s.is_match) out.push_back({s.begin, s.end});
      }
      break;
    case Behavior::isolated:
      for (const Stretch& s : stretches) out.push_back({s.begin, s.end});
      break;
    case Behavior::contiguous:
      for (const Stretch& s : stretches) {
        extend_or_add(s, s.is_match == previous_match);
        previous_match = s.is_match;
      }
      break;
    case Behavior::merged_with_previous:
      for (const Stretch& s : stretches) {
        extend_or_add(s, s.is_match && !previous_match);
        previous_match = s.is_match;
      }
      break;
    case Behavior::merged_with_next:  // a match starts a piece, and what follows it, unless a match too, joins it
      for (const Stretch& s : stretches) {
        extend_or_add(s, !s.is_match && open);
        open = s.is_match;
      }
      break;
  }
}

// Splits every piece by what `find` calls matches: find(text, visit) calls visit(begin, end).
template <class Find>
void split_pieces(Pieces& pieces, Behavior behavior, bool invert, Find&& find) {
  std::vector<Piece> result;
  std::vector<Stretch> stretches;
  for (const Piece& piece : pieces.pieces) {
    std::string_view text = std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin);
    stretches.clear();
    size_t done = 0;
    auto add = [&](size_t begin, size_t end, bool match) {
      if (begin < end) stretches.push_back({piece.begin + begin, piece.begin + end, match != invert});
    };
    find(text, [&](size_t begin, size_t end) {
      add(done, begin, false);
      add(begin, end, true);
      done = end;
    });
    add(done, text.size(), false);
    join_stretches(stretches, behavior, result);
  }
  pieces.pieces = std::move(result);
}

// Rebuilds the text piece by piece: rewrite(piece, out, at_start) appends what the piece becomes.
template <class Rewrite>
void rewrite_pieces(Pieces& pieces, Rewrite&& rewrite) {
  std::string out;
  out.reserve(pieces.text.size() + 16);
  for (Piece& piece : pieces.pieces) {
    size_t begin = out.size();
    rewrite(std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin), out,
            pieces.at_start && piece.begin == 0);
    piece = {begin, out.size()};
  }
  pieces.text = std::move(out);
}

// Splits where a class of characters stands; each character is a match of its own.
class SplitChars : public PreTokenizer {
 public:
  using Test = bool (*)(uint32_t code);
  SplitChars(Test test, Behavior behavior) : test_(test), behavior_(behavior) {}
  void apply(Pieces& pieces) const override {
    split_pieces(pieces, behavior_, false, [&](std::string_view text, auto&& visit) {
      for (size_t pos = 0; pos < text.size();) {
        Char c = decode_char(text, pos);
        if (c.code != kBadByte && test_(c.code)) visit(pos, pos + c.length);
        pos += c.length;
      }
    });
  }

 private:
  Test test_;
  Behavior behavior_;
};

bool is_space(uint32_t code) { return CharClasses()(code) & kSpace; }
bool is_number(uint32_t code) { return CharClasses()(code) & kNumber; }
bool is_punctuation(uint32_t code) {
  if (code < 0x80) return std::ispunct(static_cast<int>(code)) != 0;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}
// \w of Unicode regular expressions.
bool is_word(uint32_t code) {
  if (CharClasses()(code) & (kLetter | kMark)) return true;
  auto category = utf8proc_category(static_cast<utf8proc_int32_t>(code));
  return category == UTF8PROC_CATEGORY_ND || category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_PC ||
         code == 0x200c || code == 0x200d || (code >= 0x24b6 && code <= 0x24e9) ||
         (code >= 0x1f130 && code <= 0x1f149) || (code >= 0x1f150 && code <= 0x1f169) ||
         (code >= 0x1f170 && code <= 0x1f189);
}

// \w+|[^\w\s]+ : runs of word characters and runs of symbols; white space goes.
class Words : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    split_pieces(pieces, Behavior::removed, true, [](std::string_view text, auto&& visit) {
      auto kind = [&](Char c) { return c.code == kBadByte ? 2 : is_word(c.code) ? 1 : is_space(c.code) ? 0 : 2; };
      for (size_t pos = 0; pos < text.size();) {
        Char c = decode_char(text, pos);
        const int run = kind(c);
        size_t end = pos + c.length;
        while (run != 0 && end < text.size()) {
          c = decode_char(text, end);
          if (kind(c) != run) break;
          end += c.length;
        }
        if (run != 0) visit(pos, end);
        pos = end;
      }
    });
  }
};

class SplitText : public PreTokenizer {
 public:
  SplitText(std::string text, Behavior behavior, bool invert)
      : text_(std::move(text)), behavior_(behavior), invert_(invert) {}
  void apply(Pieces& pieces) const override {
    split_pieces(pieces, behavior_, invert_, [&](std::string_view text, auto&& visit) {
      if (text_.empty()) return;
      for (size_t at = 0; (at = text.find(text_, at)) != std::string_view::npos; at += text_.size())
        visit(at, at + text_.size());
    });
  }

 private:
  std::string text_;
  Behavior behavior_;
  bool invert_;
};

class SplitRegex : public PreTokenizer {
 public:
  SplitRegex(std::string_view pattern, const std::string& origin, Behavior behavior, bool invert)
      : regex_(pattern, origin), behavior_(behavior), invert_(invert) {}
  void apply(Pieces& pieces) const override {
    split_pieces(pieces, behavior_, invert_,
                 [&](std::string_view text, auto&& visit) { regex_.for_each_match(text, visit); });
  }

 private:
  Regex regex_;
  Behavior behavior_;
  bool invert_;
};

// One of the hand-written patterns among other steps.
class SplitKnown : public PreTokenizer {
 public:
  explicit SplitKnown(SplitPattern pattern) : end_(piece_end(pattern)) {}
  void apply(Pieces& pieces) const override {
    split_pieces(pieces, Behavior::isolated, false, [&](std::string_view text, auto&& visit) {
      for (size_t pos = 0; pos < text.size();) {
        size_t end = end_(text, pos);
        visit(pos, end);
        pos = end;
      }
    });
  }

 private:
  PieceEnd end_;
};

class AddPrefixSpace : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    rewrite_pieces(pieces, [](std::string_view piece, std::string& out, bool) {
      if (!piece.starts_with(' ')) out += ' ';
      out += piece;
    });
  }
};

// Bytes into GPT-2's alphabet; needed only where other steps look at the text afterwards.
class ToAlphabet : public PreTokenizer {
 public:
  void apply(Pieces& pieces) const override {
    rewrite_pieces(pieces, [](std::string_view piece, std::string& out, bool) { out += bytes_to_alphabet(piece); });
    pieces.in_alphabet = true;
  }
};

class Metaspace : public PreTokenizer {
 public:
  enum class Prefix { always, first, never };
  Metaspace(std::string mark, Prefix prefix, bool split) : mark_(std::move(mark)), prefix_(prefix), split_(split) {}
  void apply(Pieces& pieces) const override {
    rewrite_pieces(pieces, [&](std::string_view piece, std::string& out, bool at_start) {
      const bool marked = piece.starts_with(' ') || piece.starts_with(mark_);
      if (!marked && (prefix_ == Prefix::always || (prefix_ == Prefix::first && at_start))) out += mark_;
      for (char c : piece) {
        if (c == ' ')
          out += mark_;
        else
          out += c;
      }
    });
    if (!split_) return;
    SplitText(mark_, Behavior::merged_with_next, false).apply(pieces);
  }

 private:
  std::string mark_;
  Prefix prefix_;
  bool split_;
};

std::unique_ptr<PreTokenizer> make_metaspace(const JsonView& spec) {
  spec.check_keys({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
  std::string scheme = spec.string_or("prepend_scheme", spec.boolean_or("add_prefix_space", true) ? "always" : "never");
  Metaspace::Prefix prefix = Metaspace::Prefix::always;
  if (scheme == "first")
    prefix = Metaspace::Prefix::first;
  else if (scheme == "never")
    prefix = Metaspace::Prefix::never;
  else if (scheme != "always")
    spec.at("prepend_scheme").fail("'" + scheme + "' is not one of always, first, never");
  return std::make_unique<Metaspace>(spec.string_or("replacement", "\u2581"), prefix, spec.boolean_or("split", true));
}

struct Builder {
  PreTokenizerPlan plan;
  bool plain = true;  // so far nothing but at most one known pattern: no steps needed if it stays so

  void add(std::unique_ptr<PreTokenizer> step) {
    plain = false;
    plan.steps.push_back(std::move(step));
  }
  void add_known(SplitPattern pattern) {
    plain = plain && !plan.pattern;
    plan.pattern = pattern;
    plan.steps.push_back(std::make_unique<SplitKnown>(pattern));
  }

  void add_split(const JsonView& spec) {
    spec.check_keys({"type", "pattern", "behavior", "invert"});
    JsonView pattern = spec.at("pattern");
    pattern.check_keys({"String", "Regex"});
    const Behavior behavior = read_behavior(spec, "Isolated");
    const bool invert = spec.boolean_or("invert", false);
    if (auto text = pattern.find("String")) return add(std::make_unique<SplitText>(text->string(), behavior, invert));
    JsonView regex = pattern.at("Regex");
    // The known patterns match everything, so keeping only the matches is the same as setting each apart.
    if ((behavior == Behavior::isolated && !invert) || (behavior == Behavior::removed && invert)) {
      if (auto known = find_pattern(regex.string())) return add_known(*known);
    }
    add(std::make_unique<SplitRegex>(regex.string(), "'" + spec.file() + "': " + pattern.child_key("Regex"), behavior,
                                     invert));
  }

  void add_byte_level(const JsonView& spec, bool is_last) {
    spec.check_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (spec.boolean_or("add_prefix_space", true)) add(std::make_unique<AddPrefixSpace>());
    if (spec.boolean_or("use_regex", true)) add_known(SplitPattern::gpt2);
    if (!is_last) add(std::make_unique<ToAlphabet>());
    plan.byte_level = true;
  }

  void add_all(const JsonView& spec, int depth, bool is_last) {
    const std::string& type = spec.at("type").string();
    if (plan.byte_level && type == "ByteLevel") spec.fail("a second ByteLevel step is not supported");
    if (type == "Sequence") {
      spec.check_keys({"type", "pretokenizers"});
      if (depth > kMaxNesting) spec.fail("sequences are nested too deeply");
      JsonView list = spec.at("pretokenizers");
      for (size_t i = 0; i < list.size(); ++i) add_all(list.element(i), depth + 1, is_last && i + 1 == list.size());
    } else if (type == "ByteLevel") {
      add_byte_level(spec, is_last);
    } else if (type == "Split") {
      add_split(spec);
    } else if (type == "Metaspace") {
      add(make_metaspace(spec));
    } else if (type == "Digits") {
      spec.check_keys({"type", "individual_digits"});
      const bool single = spec.boolean_or("individual_digits", false);
      add(std::make_unique<SplitChars>(is_number, single ? Behavior::isolated : Behavior::contiguous));
    } else if (type == "Punctuation") {
      spec.check_keys({"type", "behavior"});
      add(std::make_unique<SplitChars>(is_punctuation, read_behavior(spec, "Isolated")));
    } else if (type == "Whitespace") {
      spec.check_keys({"type"});
      add(std::make_unique<Words>());
    } else if (type == "WhitespaceSplit") {
      spec.check_keys({"type"});
      add(std::make_unique<SplitChars>(is_space, Behavior::removed));
    } else if (type == "BertPreTokenizer") {
      spec.check_keys({"type"});
      add(std::make_unique<SplitChars>(is_space, Behavior::removed));
      add(std::make_unique<SplitChars>(is_punctuation, Behavior::isolated));
    } else if (type == "CharDelimiterSplit") {
      spec.check_keys({"type", "delimiter"});
      add(std::make_unique<SplitText>(spec.at("delimiter").string(), Behavior::removed, false));
    } else {
      spec.at("type").fail(
          "the pre-tokenizer '" + type +
          "' is not supported (Sequence, ByteLevel, Split, Metaspace, Digits, Punctuation, Whitespace, "
          "WhitespaceSplit, BertPreTokenizer and CharDelimiterSplit are)");
    }
  }
};

}  // namespace

PreTokenizerPlan make_pre_tokenizer(const JsonView& spec) {
  if (spec.is_null()) return {};
  Builder builder;
  builder.add_all(spec, 0, true);
  if (builder.plain)
    builder.plan.steps.clear();
  else
    builder.plan.pattern.reset();
  return std::move(builder.plan);
}

}  // namespace sinter::tokenizer
