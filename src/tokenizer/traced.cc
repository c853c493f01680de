#include "tokenizer/traced.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/tokenizer_parts.h"

namespace sinter::tokenizer {
namespace {

constexpr std::string_view kMark = "\xE2\x96\x81";  // U+2581, how SentencePiece writes a space

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Marks as the single spaces that tokens stand for.
std::string without_marks(std::string text) {
  for (size_t at = 0; (at = text.find(kMark, at)) != std::string::npos; ++at) text.replace(at, kMark.size(), " ");
  return text;
}

// The text that tokens' bytes add up to. The pre-tokenizers of real files change no more than the first space.
std::string normalized(const TokenizerParts& parts, std::string_view text) {
  std::string out(text);
  if (parts.normalizer) parts.normalizer->apply(out);
  return without_marks(std::move(out));
}

// For each byte of `to` (and its end) the place in `from`: equal stretches byte by byte, the others as a whole. ASCII
// characters stand for themselves in every normal form and begin a stretch.
class Alignment {
 public:
  Alignment(const TokenizerParts& parts, std::string_view from, const std::string& to) {
    if (from == to) return;
    is_equal_ = false;
    const size_t lead = to.size() == from.size() + 1 && to[0] == ' ' && to.substr(1) == from ? 1 : 0;
    if (lead > 0) {
      for (size_t i = 0; i < to.size(); ++i) spans_.push_back(i < lead ? ByteSpan{0, 0} : ByteSpan{i - lead, i});
      return;
    }
    std::string joined;
    for (size_t begin = 0; begin < from.size();) {
      size_t end = begin + 1;
      while (end < from.size() && static_cast<unsigned char>(from[end]) >= 0x80) ++end;
      const std::string_view stretch = from.substr(begin, end - begin);
      const std::string part = normalized(parts, stretch);
      for (size_t i = 0; i < part.size(); ++i)
        spans_.push_back(part == stretch ? ByteSpan{begin + i, begin + i + 1} : ByteSpan{begin, end});
      joined += part;
      begin = end;
    }
    is_traced_ = joined == to;
  }
  bool is_traced() const { return is_traced_; }
  // What bytes [begin, end) of `to` come from.
  ByteSpan from(size_t begin, size_t end) const {
    if (is_equal_ || begin == end) return {begin, end};
    ByteSpan out = spans_[begin];
    for (size_t i = begin; i < end; ++i) out.end = std::max(out.end, spans_[i].end);
    return out;
  }

 private:
  std::vector<ByteSpan> spans_;
  bool is_equal_ = true, is_traced_ = true;
};

}  // namespace

TracedEncoder::TracedEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  for (const AddedToken& token : tokenizer.parts().added) {
    if (!token.special || token.content.empty()) continue;
    specials_.push_back({token.content, token.id, token.lstrip, token.rstrip});
    can_begin_[static_cast<unsigned char>(token.content[0])] = true;
  }
  std::stable_sort(specials_.begin(), specials_.end(),
                   [](const Special& a, const Special& b) { return a.content.size() > b.content.size(); });
}

const TracedEncoder::Special* TracedEncoder::match(std::string_view text, size_t at) const {
  if (!can_begin_[static_cast<unsigned char>(text[at])]) return nullptr;
  for (const Special& special : specials_) {
    if (text.substr(at, special.content.size()) == special.content) return &special;
  }
  return nullptr;
}

std::vector<size_t> TracedEncoder::marker_places(std::string_view text) const {
  std::vector<size_t> places;
  for (size_t at = 0; at < text.size(); ++at) {
    if (match(text, at)) places.push_back(at + 1);
  }
  return places;
}

TracedText TracedEncoder::encode(std::string_view text, const std::vector<size_t>& plain_at, Starts starts) const {
  TracedText out;
  size_t begin = 0;  // of the piece that is open
  auto close = [&](size_t end) {
    if (end > begin)
      encode_piece(text, {begin, end}, starts == Starts::pieces || (starts == Starts::text && begin == 0), out);
  };
  for (size_t at = 0; at < text.size();) {
    const Special* special = match(text, at);
    if (special) {
      const auto place = std::upper_bound(plain_at.begin(), plain_at.end(), at);
      if (place != plain_at.end() && *place < at + special->content.size()) special = nullptr;
    }
    if (!special) {
      ++at;
      continue;
    }
    ByteSpan span{at, at + special->content.size()};
    while (special->takes_space_before && span.begin > begin && is_space(text[span.begin - 1])) --span.begin;
    while (special->takes_space_after && span.end < text.size() && is_space(text[span.end])) ++span.end;
    close(span.begin);
    out.ids.push_back(special->id);
    out.bytes.push_back(span);
    at = begin = span.end;
  }
  close(text.size());
  return out;
}

void TracedEncoder::encode_piece(std::string_view text, ByteSpan piece, bool is_start, TracedText& out) const {
  const std::string_view from = text.substr(piece.begin, piece.end - piece.begin);
  const size_t first = out.ids.size();
  encode_plain(tokenizer_.parts(), from, is_start, out.ids);
  std::string bytes;
  std::vector<size_t> ends;
  for (size_t i = first; i < out.ids.size(); ++i) {
    bytes += without_marks(tokenizer_.token_bytes(out.ids[i]));
    ends.push_back(bytes.size());
  }
  std::string expected = normalized(tokenizer_.parts(), from);
  if (bytes != expected && bytes == " " + expected) expected = bytes;  // a pre-tokenizer's first space
  const Alignment alignment(tokenizer_.parts(), from, expected);
  SINTER_CHECK(bytes == expected && alignment.is_traced(),
               "the tokenizer '{}' turns the text '{}' into tokens that cannot be traced back to its bytes (they say "
               "'{}'): its loss mask would be a guess",
               tokenizer_.parts().origin, from.substr(0, 60), std::string_view(bytes).substr(0, 60));
  size_t begin = 0;
  for (size_t end : ends) {
    const ByteSpan span = alignment.from(begin, end);
    out.bytes.push_back({piece.begin + span.begin, piece.begin + span.end});
    begin = end;
  }
}

}  // namespace sinter::tokenizer
