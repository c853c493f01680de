#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/threads.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

namespace sinter::tokenizer {
namespace {

constexpr std::string_view kMark = "\u2581";

// Whether no token that merging can make has U+2581 after another character: then no merge crosses such a place.
bool marks_only_lead(const BpeModel& model) {
  bool only_lead = true;
  model.merges.for_each([&](int32_t, int32_t, const Merge& merge) {
    std::string_view token = model.vocabulary.bytes(merge.id);
    while (token.starts_with(kMark)) token.remove_prefix(kMark.size());
    if (token.find(kMark) != std::string_view::npos) only_lead = false;
  });
  return only_lead;
}

// The end of the piece from pos: before the next U+2581 that follows something else.
size_t marked_piece_end(std::string_view text, size_t pos) {
  while (text.substr(pos).starts_with(kMark)) pos += kMark.size();
  const size_t end = text.find(kMark, pos);
  return end == std::string_view::npos ? text.size() : end;
}

class Encoder {
 public:
  Encoder(const TokenizerParts& parts, EncodeOptions options, std::vector<int32_t>& ids)
      : parts_(parts), options_(options), cache_(parts.caches.take()), out_(ids) {}
  ~Encoder() { parts_.caches.give_back(std::move(cache_)); }

  void encode(std::string_view text) {
    if (options_.add_special) push_all(parts_.around.before);
    encode_text(text, true);
    if (options_.add_special) push_all(parts_.around.after);
  }

  // Text that begins at the start of the input or not, without what stands around it.
  void encode_text(std::string_view text, bool at_start) {
    parts_.raw_finder.split(
        text, options_.parse_special,
        [&](size_t begin, size_t end) { normalize(text.substr(begin, end - begin), at_start && begin == 0); },
        [&](int32_t id) { out_.push(id); });
  }

 private:
  void push_all(const std::vector<int32_t>& ids) {
    for (int32_t id : ids) out_.push(id);
  }

  void normalize(std::string_view text, bool at_start) {
    std::string normalized;
    if (parts_.normalizer) {
      normalized = text;
      parts_.normalizer->apply(normalized);
      text = normalized;
    }
    parts_.normalized_finder.split(
        text, options_.parse_special,
        [&](size_t begin, size_t end) { split(text.substr(begin, end - begin), at_start && begin == 0); },
        [&](int32_t id) { out_.push(id); });
  }

  void split(std::string_view text, bool at_start) {
    const PreTokenizerPlan& plan = parts_.pre_tokenizer;
    if (plan.pattern) return encode_pieces(text, piece_end(*plan.pattern));
    if (plan.steps.empty()) return encode_whole(text);
    Pieces pieces{.text = std::string(text), .pieces = {{0, text.size()}}, .at_start = at_start};
    for (const auto& step : plan.steps) step->apply(pieces);
    std::string bytes;
    for (const Piece& piece : pieces.pieces) {
      std::string_view view = std::string_view(pieces.text).substr(piece.begin, piece.end - piece.begin);
      if (pieces.in_alphabet) {
        alphabet_to_bytes(view, bytes);
        parts_.model.encode_piece(bytes, bytes.size(), *cache_, out_);
      } else {
        encode_whole(view);
      }
    }
  }

  void encode_whole(std::string_view text) {
    if (parts_.split_at_mark) return encode_pieces(text, marked_piece_end);
    parts_.model.encode_piece(text, text.size(), *cache_, out_);
  }

  void encode_pieces(std::string_view text, PieceEnd find_end) {
    const BpeModel& model = parts_.model;
    PieceCache& cache = *cache_;
    for (size_t pos = 0; pos < text.size();) {
      const size_t end = find_end(text, pos);
      model.encode_piece(text.substr(pos, end - pos), text.size() - pos, cache, out_);
      pos = end;
    }
  }

  const TokenizerParts& parts_;
  const EncodeOptions options_;
  std::unique_ptr<PieceCache> cache_;
  IdSink out_;
};

bool allows_cuts(const TokenizerParts& parts) {
  return parts.pre_tokenizer.pattern && (!parts.normalizer || parts.normalizer->allows_cuts()) &&
         parts.raw_finder.allows_cuts() && parts.normalized_finder.allows_cuts();
}

void check_id(const TokenizerParts& parts, int32_t id) {
  SINTER_CHECK(parts.model.vocabulary.has(id) || parts.added_token(id),
               "token id {} is not in the vocabulary of '{}' (0 to {})", id, parts.origin, parts.size - 1);
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

}  // namespace

std::unique_ptr<PieceCache> CachePool::take() {
  {
    std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      auto cache = std::move(free_.back());
      free_.pop_back();
      return cache;
    }
  }
  return std::make_unique<PieceCache>();
}

void CachePool::give_back(std::unique_ptr<PieceCache> cache) {
  std::lock_guard lock(mutex_);
  free_.push_back(std::move(cache));
}

void TokenizerParts::finish() {
  auto stage = [&](const std::string& text) { return base::parse_json(text, origin); };
  const nlohmann::json normalizer_spec = stage(normalizer_json), pre_spec = stage(pre_tokenizer_json),
                       post_spec = stage(post_processor_json), decoder_spec = stage(decoder_json);
  normalizer = make_normalizer({normalizer_spec, origin, "normalizer"});
  pre_tokenizer = make_pre_tokenizer({pre_spec, origin, "pre_tokenizer"});
  decode_rules = make_decode_rules({decoder_spec, origin, "decoder"});
  around = make_template({post_spec, origin, "post_processor"});
  raw_finder = normalized_finder = {};
  added_texts.clear();
  added_by_content.clear();
  size = model.vocabulary.size();
  for (const AddedToken& token : added) size = std::max(size, std::min(token.id, Vocabulary::kMaxId) + 1);
  added_at.assign(static_cast<size_t>(size), -1);
  for (size_t i = 0; i < added.size(); ++i) {
    const AddedToken& token = added[i];
    SINTER_CHECK(token.id >= 0 && token.id <= Vocabulary::kMaxId,
                 "'{}': added_tokens[{}].id: found {}, expected 0 to {}", origin, i, token.id, Vocabulary::kMaxId);
    int32_t& at = added_at[static_cast<size_t>(token.id)];
    if (at < 0) at = static_cast<int32_t>(i);
    added_by_content.emplace(token.content, i);
    std::string pattern = token.content;
    if (!token.symbol.empty())
      pattern = token.symbol;
    else if (token.normalized && normalizer)
      normalizer->apply(pattern);
    (token.normalized || !token.symbol.empty() ? normalized_finder : raw_finder).add(token, pattern);
    if (token.plain_too && pattern != token.content) normalized_finder.add(token, token.content);
    added_texts.push_back(std::move(pattern));
  }
  split_at_mark = !pre_tokenizer.byte_level && !pre_tokenizer.pattern && !model.ignore_merges &&
                  model.continuing_prefix.empty() && model.end_suffix.empty() && marks_only_lead(model);
}

void encode_plain(const TokenizerParts& parts, std::string_view text, bool at_start, std::vector<int32_t>& ids) {
  Encoder(parts, {}, ids).encode_text(text, at_start);
}

std::string decoded_token(const TokenizerParts& parts, int32_t id) {
  const DecodeRules& rules = parts.decode_rules;
  std::string text;
  bool is_added = false;
  if (const AddedToken* token = parts.added_token(id)) {
    text = parts.added_texts[static_cast<size_t>(token - parts.added.data())];
    is_added = true;
  } else {
    text = parts.model.vocabulary.bytes(id);
    if (parts.model.over_bytes) {
      const bool raw = !parts.model.vocabulary.is_hidden(id) && rules.form == DecodeRules::ByteForm::alphabet;
      if (raw) return text;
      if (!parts.model.vocabulary.is_hidden(id)) text = bytes_to_alphabet(text);  // a file without the byte decoder
    }
  }
  if (rules.form == DecodeRules::ByteForm::alphabet) {
    std::string bytes;
    return alphabet_to_bytes(text, bytes) ? bytes : text;
  }
  if (rules.byte_fallback && !is_added && text.size() == 6 && text.starts_with("<0x") && text[5] == '>') {
    auto digit = [](char c) {
      return c >= '0' && c <= '9'   ? c - '0'
             : c >= 'A' && c <= 'F' ? c - 'A' + 10
             : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                    : -1;
    };
    if (digit(text[3]) >= 0 && digit(text[4]) >= 0)
      return std::string(1, static_cast<char>(digit(text[3]) * 16 + digit(text[4])));
  }
  for (const auto& r : rules.replacements) text = replace_all(std::move(text), r.from, r.to);
  return text;
}

Tokenizer::Tokenizer(std::unique_ptr<TokenizerParts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<int32_t> ids;
  encode_append(text, options, ids);
  return ids;
}

void Tokenizer::encode_append(std::string_view text, EncodeOptions options, std::vector<int32_t>& ids) const {
  Encoder(*parts_, options, ids).encode(text);
}

std::vector<std::vector<int32_t>> Tokenizer::encode_many(std::span<const std::string_view> texts,
                                                         EncodeOptions options) const {
  std::vector<std::vector<int32_t>> ids(texts.size());
  base::parallel_for(static_cast<int64_t>(texts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      encode_append(texts[static_cast<size_t>(i)], options, ids[static_cast<size_t>(i)]);
  });
  return ids;
}

std::vector<int32_t> Tokenizer::encode_parallel(std::string_view text, EncodeOptions options) const {
  constexpr size_t kChunk = 1 << 18;
  if (!allows_cuts(*parts_) || text.size() < 2 * kChunk) return encode(text, options);
  std::vector<std::string_view> chunks;
  for (size_t pos = 0; pos < text.size();) {
    const size_t end = safe_cut(text, std::min(text.size() - 1, pos + kChunk));
    chunks.push_back(text.substr(pos, end - pos));
    pos = end;
  }
  std::vector<std::vector<int32_t>> parts = encode_many(chunks, {.parse_special = options.parse_special});
  std::vector<int32_t> ids;
  size_t total = parts_->around.before.size() + parts_->around.after.size();
  for (const auto& part : parts) total += part.size();
  ids.reserve(total);
  if (options.add_special) ids = parts_->around.before;
  for (auto& part : parts) {
    ids.insert(ids.end(), part.begin(), part.end());
    std::vector<int32_t>().swap(part);
  }
  if (options.add_special) ids.insert(ids.end(), parts_->around.after.begin(), parts_->around.after.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  if (parts_->decode_rules.form == DecodeRules::ByteForm::alphabet && parts_->model.over_bytes) {
    const Vocabulary& vocabulary = parts_->model.vocabulary;
    for (int32_t id : ids) {
      if (vocabulary.has(id) && !vocabulary.is_hidden(id) && !parts_->added_token(id)) {
        text += vocabulary.bytes(id);
      } else {
        check_id(*parts_, id);
        if (!(skip_special && is_special(id))) text += decoded_token(*parts_, id);
      }
    }
    return text;
  }
  StreamDecoder decoder(*this, skip_special, StreamDecoder::Invalid::keep);
  for (int32_t id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

int32_t Tokenizer::vocab_size() const { return parts_->size; }

bool Tokenizer::has_id(int32_t id) const { return parts_->model.vocabulary.has(id) || parts_->added_token(id); }

bool Tokenizer::is_special(int32_t id) const {
  const AddedToken* token = parts_->added_token(id);
  return token && token->special;
}

std::string Tokenizer::token_text(int32_t id) const {
  if (const AddedToken* token = parts_->added_token(id)) return token->content;
  const Vocabulary& vocabulary = parts_->model.vocabulary;
  std::string bytes(vocabulary.bytes(id));
  return vocabulary.has(id) && parts_->model.over_bytes && !vocabulary.is_hidden(id) ? bytes_to_alphabet(bytes) : bytes;
}

std::string Tokenizer::token_bytes(int32_t id) const { return has_id(id) ? decoded_token(*parts_, id) : ""; }

int32_t Tokenizer::token_id(std::string_view token) const {
  if (auto it = parts_->added_by_content.find(std::string(token)); it != parts_->added_by_content.end()) {
    return parts_->added[it->second].id;
  }
  if (!parts_->model.over_bytes) return parts_->model.vocabulary.find(token);
  std::string bytes;
  return alphabet_to_bytes(token, bytes) ? parts_->model.vocabulary.find(bytes) : -1;
}

std::optional<SplitPattern> Tokenizer::split_pattern() const { return parts_->pre_tokenizer.pattern; }

const SpecialIds& Tokenizer::special_ids() const { return parts_->special_ids; }
void Tokenizer::set_special_ids(const SpecialIds& ids) { parts_->special_ids = ids; }

void Tokenizer::set_surrounding_ids(int32_t before, int32_t after) {
  auto list = [](int32_t id) { return id >= 0 ? std::vector{id} : std::vector<int32_t>{}; };
  parts_->around = {list(before), list(after)};
  parts_->post_processor_json = before >= 0 ? bos_template_json(token_text(before), before).dump() : "null";
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special, Invalid invalid)
    : tokenizer_(&tokenizer),
      skip_special_(skip_special),
      invalid_(invalid),
      strip_left_(tokenizer.parts().decode_rules.strip_left) {}

std::string StreamDecoder::push(int32_t id) {
  const TokenizerParts& parts = tokenizer_->parts();
  check_id(parts, id);
  if (skip_special_ && tokenizer_->is_special(id)) return "";
  const DecodeRules& rules = parts.decode_rules;
  std::string text = decoded_token(parts, id);
  if (!rules.word_suffix.empty() && text.ends_with(rules.word_suffix)) {
    text.replace(text.size() - rules.word_suffix.size(), std::string::npos, " ");
  }
  if (is_first_ && rules.drop_first_space) std::erase(text, ' ');  // all the marks of the first token
  if (!is_first_) pending_ += rules.separator;
  is_first_ = false;
  while (strip_left_ > 0 && !text.empty()) {
    if (text[0] != rules.strip_char) {
      strip_left_ = 0;
      break;
    }
    text.erase(0, 1);
    --strip_left_;
  }
  pending_ += text;
  return take(false);
}

void StreamDecoder::skip(std::span<const int32_t> ids) {
  for (int32_t id : ids) push(id);
  pending_.clear();
}

std::string StreamDecoder::finish() {
  const DecodeRules& rules = tokenizer_->parts().decode_rules;
  if (!rules.word_suffix.empty() && pending_.ends_with(' ')) pending_.pop_back();
  for (size_t n = 0; n < rules.strip_right && pending_.ends_with(rules.strip_char); ++n) pending_.pop_back();
  is_first_ = true;
  strip_left_ = rules.strip_left;
  return take(true);
}

std::string StreamDecoder::take(bool all) {
  const DecodeRules& rules = tokenizer_->parts().decode_rules;
  size_t held = 0;
  if (!all) {
    held = incomplete_tail(pending_);
    // What finish() may take off must not be out already.
    const size_t room = rules.strip_right + (rules.word_suffix.empty() ? 0 : 1);
    const auto may_go = [&](char c) { return c == rules.strip_char || c == ' '; };
    if (held == 0) {
      while (held < std::min(room, pending_.size()) && may_go(pending_[pending_.size() - 1 - held])) ++held;
    }
  }
  std::string out = pending_.substr(0, pending_.size() - held);
  pending_.erase(0, out.size());
  if (invalid_ == Invalid::keep || is_valid_utf8(out)) return out;
  std::string valid;
  for (size_t pos = 0; pos < out.size();) {
    const Char c = decode_char(out, pos);
    if (c.code == kBadByte) {
      valid += "\ufffd";
      pos += ill_formed_bytes(out, pos);
      continue;
    }
    valid.append(out, pos, c.length);
    pos += c.length;
  }
  return valid;
}

}  // namespace sinter::tokenizer
