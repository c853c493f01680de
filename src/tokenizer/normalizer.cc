#include "base/error.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace sinter::tokenizer {
namespace {

constexpr int kMaxNesting = 16;  // of Sequence in Sequence; real files have two

// A text may grow in a stage, but not without bound: a file from outside must not be able to ask for all memory.
void check_growth(size_t from, size_t to) {
  constexpr size_t kSmall = size_t{64} << 20, kMost = size_t{2} << 30;
  SINTER_CHECK(to <= kSmall || (to <= kMost && to / 4 <= from),
               "tokenizer.json: the normalizer 'Replace' makes a text of {} bytes longer than {}; is 'content' right?",
               from, to);
}

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(NormalForm form) : form_(form) {}
  void apply(std::string& text) const override { text = normalize_unicode(text, form_); }
  bool allows_cuts() const override { return true; }  // ASCII neither composes to the left nor decomposes

 private:
  NormalForm form_;
};

class Lowercase : public Normalizer {
 public:
  void apply(std::string& text) const override { text = lowercase_unicode(text); }
  bool allows_cuts() const override { return true; }
};

class StripAccents : public Normalizer {
 public:
  void apply(std::string& text) const override { text = strip_nonspacing_marks(text); }
  bool allows_cuts() const override { return true; }
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }

 private:
  std::string prefix_;
};

class StripSpace : public Normalizer {
 public:
  StripSpace(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text) const override {
    const CharClasses classes;
    size_t begin = 0, end = 0;
    bool seen = false;
    for (size_t pos = 0; pos < text.size();) {
      Char c = decode_char(text, pos);
      if (!(classes(c.code) & kSpace)) {
        if (!seen) begin = pos;
        seen = true;
        end = pos + c.length;
      }
      pos += c.length;
    }
    if (right_) text.resize(seen ? end : 0);
    if (left_) text.erase(0, seen ? begin : text.size());
  }

 private:
  bool left_, right_;
};

class ReplaceText : public Normalizer {
 public:
  ReplaceText(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
  void apply(std::string& text) const override {
    if (from_.empty()) return;
    std::string out;
    size_t done = 0;
    for (size_t at; (at = text.find(from_, done)) != std::string::npos; done = at + from_.size()) {
      out.append(text, done, at - done);
      out += to_;
      check_growth(text.size(), out.size());
    }
    if (done == 0) return;
    out.append(text, done);
    text = std::move(out);
  }

 private:
  std::string from_, to_;
};

class ReplaceRegex : public Normalizer {
 public:
  ReplaceRegex(std::string_view pattern, const std::string& origin, std::string to)
      : regex_(pattern, origin), to_(std::move(to)) {}
  void apply(std::string& text) const override {
    std::string out;
    size_t done = 0;
    regex_.for_each_match(text, [&](size_t begin, size_t end) {
      out.append(text, done, begin - done);
      out += to_;
      check_growth(text.size(), out.size());
      done = end;
    });
    out.append(text, done);
    text = std::move(out);
  }

 private:
  Regex regex_;
  std::string to_;
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> steps) : steps_(std::move(steps)) {}
  void apply(std::string& text) const override {
    for (const auto& step : steps_) step->apply(text);
  }
  bool allows_cuts() const override {
    for (const auto& step : steps_) {
      if (!step->allows_cuts()) return false;
    }
    return true;
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> steps_;
};

std::unique_ptr<Normalizer> make(const JsonView& spec, int depth) {
  const std::string& type = spec.at("type").string();
  auto no_options = [&] { spec.check_keys({"type"}); };
  if (type == "Sequence") {
    spec.check_keys({"type", "normalizers"});
    if (depth > kMaxNesting) spec.fail("sequences are nested too deeply");
    std::vector<std::unique_ptr<Normalizer>> steps;
    JsonView list = spec.at("normalizers");
    for (size_t i = 0; i < list.size(); ++i) steps.push_back(make(list.element(i), depth + 1));
    return std::make_unique<NormalizerSequence>(std::move(steps));
  }
  if (type == "NFC") return no_options(), std::make_unique<UnicodeForm>(NormalForm::nfc);
  if (type == "NFD") return no_options(), std::make_unique<UnicodeForm>(NormalForm::nfd);
  if (type == "NFKC") return no_options(), std::make_unique<UnicodeForm>(NormalForm::nfkc);
  if (type == "NFKD") return no_options(), std::make_unique<UnicodeForm>(NormalForm::nfkd);
  if (type == "Lowercase") return no_options(), std::make_unique<Lowercase>();
  if (type == "StripAccents") return no_options(), std::make_unique<StripAccents>();
  if (type == "Prepend") {
    spec.check_keys({"type", "prepend"});
    return std::make_unique<Prepend>(spec.at("prepend").string());
  }
  if (type == "Strip") {
    spec.check_keys({"type", "strip_left", "strip_right"});
    return std::make_unique<StripSpace>(spec.boolean_or("strip_left", true), spec.boolean_or("strip_right", true));
  }
  if (type == "Replace") {
    spec.check_keys({"type", "pattern", "content"});
    JsonView pattern = spec.at("pattern");
    pattern.check_keys({"String", "Regex"});
    std::string to = spec.at("content").string();
    if (auto text = pattern.find("String")) return std::make_unique<ReplaceText>(text->string(), std::move(to));
    JsonView regex = pattern.at("Regex");
    return std::make_unique<ReplaceRegex>(regex.string(), "'" + spec.file() + "': " + pattern.child_key("Regex"),
                                          std::move(to));
  }
  spec.at("type").fail(
      "the normalizer '" + type +
      "' is not supported (Sequence, NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Prepend, Strip and "
      "Replace are)");
}

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const JsonView& spec) { return spec.is_null() ? nullptr : make(spec, 0); }

}  // namespace sinter::tokenizer
