// SentencePiece .model files (BPE): a protocol buffer with the pieces, their scores and the normalization.
#include "tokenizer/sentencepiece.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tokenizer/merges_from_ranks.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

namespace sinter::tokenizer {
namespace {

// Reads the fields of one protocol-buffer message.
class ProtoReader {
 public:
  ProtoReader(std::string_view bytes, const std::string& origin) : bytes_(bytes), origin_(origin) {}

  // False at the end. Afterwards field() says which it is, and exactly one of the values has been read.
  bool next() {
    if (pos_ == bytes_.size()) return false;
    const uint64_t key = varint();
    field_ = key >> 3;
    switch (key & 7) {
      case 0:
        number_ = varint();
        break;
      case 1:
        take(8);
        break;
      case 2: {
        const uint64_t length = varint();
        text_ = take(length);
        break;
      }
      case 5: {
        std::string_view four = take(4);
        std::memcpy(&real_, four.data(), 4);
        break;
      }
      default:
        broken(fmt::format("wire type {}", key & 7));
    }
    return true;
  }
  uint64_t field() const { return field_; }
  uint64_t number() const { return number_; }
  float real() const { return real_; }
  std::string_view text() const { return text_; }

 private:
  [[noreturn]] void broken(std::string_view what) const {
    base::fail("'{}' is not a SentencePiece model or is cut off: {} at byte {} of a message of {}", origin_, what, pos_,
               bytes_.size());
  }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (pos_ == bytes_.size()) broken("number without end");
      const auto byte = static_cast<unsigned char>(bytes_[pos_++]);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    broken("number too long");
  }
  std::string_view take(uint64_t length) {
    if (length > bytes_.size() - pos_) broken(fmt::format("a field of {} bytes", length));
    std::string_view part = bytes_.substr(pos_, length);
    pos_ += length;
    return part;
  }

  std::string_view bytes_;
  const std::string& origin_;
  size_t pos_ = 0;
  uint64_t field_ = 0, number_ = 0;
  float real_ = 0;
  std::string_view text_;
};

SentencePiece read_piece(std::string_view bytes, const std::string& origin) {
  SentencePiece piece;
  for (ProtoReader reader(bytes, origin); reader.next();) {
    if (reader.field() == 1) piece.text = reader.text();
    if (reader.field() == 2) piece.score = reader.real();
    if (reader.field() == 3) piece.type = reader.number();
  }
  return piece;
}

SpModel read_model(std::string_view bytes, const std::string& origin) {
  SpModel model;
  for (ProtoReader reader(bytes, origin); reader.next();) {
    if (reader.field() == 1) {
      model.pieces.push_back(read_piece(reader.text(), origin));
    } else if (reader.field() == 2) {
      model.has_trainer = true;
      for (ProtoReader trainer(reader.text(), origin); trainer.next();) {
        switch (trainer.field()) {
          case 3:
            model.model_type = trainer.number();
            break;
          case 4:
            model.vocab_size = static_cast<int64_t>(trainer.number());
            break;
          case 24:
            model.whitespace_as_suffix = trainer.number() != 0;
            break;
          case 35:
            model.byte_fallback = trainer.number() != 0;
            break;
          case 40:
            model.unk_id = static_cast<int32_t>(trainer.number());
            break;
          case 41:
            model.bos_id = static_cast<int32_t>(trainer.number());
            break;
          case 42:
            model.eos_id = static_cast<int32_t>(trainer.number());
            break;
          case 43:
            model.pad_id = static_cast<int32_t>(trainer.number());
            break;
          default:
            break;
        }
      }
    } else if (reader.field() == 3) {
      for (ProtoReader normalizer(reader.text(), origin); normalizer.next();) {
        switch (normalizer.field()) {
          case 2:
            model.charsmap = normalizer.text();
            break;
          case 3:
            model.add_dummy_prefix = normalizer.number() != 0;
            break;
          case 4:
            model.remove_extra_whitespaces = normalizer.number() != 0;
            break;
          case 5:
            model.escape_whitespaces = normalizer.number() != 0;
            break;
          default:
            break;
        }
      }
    }
  }
  return model;
}

void check_supported(const SpModel& model, const std::string& origin) {
  static constexpr const char* kTypes[] = {"?", "unigram", "BPE", "word", "character"};
  SINTER_CHECK(!model.pieces.empty(), "'{}' holds no pieces: not a SentencePiece model", origin);
  SINTER_CHECK(model.has_trainer, "'{}' has no trainer_spec: it is not a SentencePiece model or is cut off", origin);
  SINTER_CHECK(model.model_type == 2, "'{}': trainer_spec.model_type: {} models are not supported (BPE is)", origin,
               model.model_type < 5 ? kTypes[model.model_type] : "unknown");
  SINTER_CHECK(model.vocab_size < 0 || model.vocab_size == static_cast<int64_t>(model.pieces.size()),
               "'{}' holds {} pieces, but trainer_spec.vocab_size is {}: the file is cut off or altered", origin,
               model.pieces.size(), model.vocab_size);
  SINTER_CHECK(model.charsmap.empty(), "'{}': normalizer_spec.precompiled_charsmap is not supported (identity is)",
               origin);
  SINTER_CHECK(!model.whitespace_as_suffix, "'{}': trainer_spec.treat_whitespace_as_suffix is not supported", origin);
  for (const auto& piece : model.pieces) {  // which would be matched before spaces are removed
    const bool is_of_spaces = piece.type == kUserDefined && piece.text.find("\u2581") != std::string::npos;
    SINTER_CHECK(
        !is_of_spaces || !model.remove_extra_whitespaces,
        "'{}': the user-defined symbol '{}' with spaces and normalizer_spec.remove_extra_whitespaces together are not "
        "supported",
        origin, piece.text);
  }
  SINTER_CHECK(model.escape_whitespaces, "'{}': normalizer_spec.escape_whitespaces = false is not supported", origin);
}

nlohmann::json normalizer_json(const SpModel& model) {
  nlohmann::json steps = nlohmann::json::array();
  if (model.remove_extra_whitespaces) {
    // Spaces, not other white space; at the end what a space is written as counts as one too.
    steps.push_back({{"type", "Replace"}, {"pattern", {{"Regex", "\\A +|[ \u2581]+\\z"}}}, {"content", ""}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", " "}});
  }
  if (model.add_dummy_prefix) steps.push_back({{"type", "Prepend"}, {"prepend", "\u2581"}});
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}});
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

nlohmann::json decoder_json(const SpModel& model) {
  nlohmann::json steps = nlohmann::json::array();
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}});
  steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  const int leading = model.remove_extra_whitespaces ? 1 << 20 : model.add_dummy_prefix ? 1 : 0;  // spaces taken away
  if (leading > 0) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", leading}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", steps}};
}

// Ranks of the normal pieces: the best score first, equal scores alike.
std::vector<uint32_t> ranks_by_score(const SpModel& model) {
  std::vector<size_t> order;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    if (model.pieces[i].type == kNormal) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return model.pieces[a].score > model.pieces[b].score; });
  std::vector<uint32_t> ranks(model.pieces.size(), Merge::kNoRank);
  uint32_t rank = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    if (k > 0 && model.pieces[order[k]].score != model.pieces[order[k - 1]].score) ++rank;
    ranks[order[k]] = rank;
  }
  return ranks;
}

}  // namespace

Tokenizer Tokenizer::from_sentencepiece(std::string_view bytes, const std::string& origin) {
  return make_sentencepiece_tokenizer(read_model(bytes, origin), origin);
}

Tokenizer make_sentencepiece_tokenizer(const SpModel& source, const std::string& origin) {
  check_supported(source, origin);
  auto parts = std::make_unique<TokenizerParts>();
  parts->origin = origin;
  BpeModel& model = parts->model;
  model.byte_fallback = source.byte_fallback;
  model.fuse_unknown = true;
  for (size_t i = 0; i < source.pieces.size(); ++i) {
    const SentencePiece& piece = source.pieces[i];
    const auto id = static_cast<int32_t>(i);
    SINTER_CHECK(!piece.text.empty() && piece.text.size() <= kMaxTokenBytes && is_valid_utf8(piece.text) &&
                     !std::isnan(piece.score),
                 "'{}': pieces[{}] is empty, longer than {} bytes, not UTF-8, or without a score", origin, i,
                 kMaxTokenBytes);
    SINTER_CHECK(piece.type >= kNormal && piece.type <= kByte, "'{}': pieces[{}].type: {} is not a known type", origin,
                 i, piece.type);
    SINTER_CHECK(model.vocabulary.add(id, piece.text), "'{}': pieces[{}]: '{}' is there twice", origin, i, piece.text);
    const bool special = piece.type == kControl || piece.type == kUnknown;
    if (special || piece.type == kUserDefined) {
      AddedToken token{.id = id,
                       .content = std::string(piece.text),
                       .special = special,
                       .normalized = special && !source.cuts_specials_first,
                       .plain_too = special && !source.cuts_specials_first};
      // The library finds its user-defined symbols after the prefix and the marks have been put in.
      if (!special && !source.cuts_specials_first) token.symbol = piece.text;
      parts->added.push_back(std::move(token));
    }
    if (piece.type == kUnknown) model.unknown_id = id;
  }
  const std::vector<uint32_t> ranks = ranks_by_score(source);
  add_merges_from_ranks(model, [&](int32_t id) { return ranks[static_cast<size_t>(id)]; });
  model.finish();
  auto known = [&](int32_t id) { return model.vocabulary.has(id) ? id : -1; };
  parts->special_ids = {known(source.bos_id), known(source.eos_id), known(source.pad_id), model.unknown_id};
  parts->normalizer_json = normalizer_json(source).dump();
  parts->decoder_json = decoder_json(source).dump();
  if (int32_t bos = parts->special_ids.bos; bos >= 0) {
    parts->post_processor_json = bos_template_json(std::string(model.vocabulary.bytes(bos)), bos).dump();
  }
  parts->finish();
  return Tokenizer(std::move(parts));
}

}  // namespace sinter::tokenizer
