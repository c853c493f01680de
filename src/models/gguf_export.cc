#include "models/gguf_export.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/log.h"
#include "models/gguf.h"
#include "spec/families.h"
#include "spec/rope.h"
#include "tokenizer/gguf.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

namespace sinter::models {

std::vector<int64_t> GgufExportTensor::shape() const {
  if (info->shape.rank() == 1) return {rows()};
  if (info->shape.rank() == 3) return {static_cast<int64_t>(parts.size()), rows(), columns()};
  return {rows(), columns()};
}

std::vector<GgufExportTensor> gguf_tensors(const spec::ModelSpec& spec, const std::vector<spec::ParameterSpec>& table) {
  std::vector<GgufExportTensor> tensors;
  for (const spec::ParameterSpec& info : table) {
    for (const spec::ParameterPart& part : info.parts) {
      const std::string name = spec::gguf_place(part).name;
      auto found = std::find_if(tensors.begin(), tensors.end(), [&](const auto& t) { return t.name == name; });
      if (found != tensors.end()) {
        found->parts.push_back(&part);
      } else {
        tensors.push_back({name, &info, {&part}, spec::paired_heads_in_gguf(spec, part)});
      }
    }
  }
  return tensors;
}

std::vector<float> to_gguf_order(const GgufExportTensor& tensor, std::vector<float> values) {
  if (tensor.paired_heads == 0) return values;
  const int64_t columns = tensor.columns(), head_dim = tensor.rows() / tensor.paired_heads;
  std::vector<float> ordered(values.size());
  for (int64_t r = 0; r < tensor.rows(); ++r) {
    const int64_t to = r / head_dim * head_dim + paired_row(r % head_dim, head_dim);
    std::copy_n(values.begin() + r * columns, columns, ordered.begin() + to * columns);
  }
  return ordered;
}

std::vector<float> gguf_rope_divisors(const spec::ModelSpec& spec) {
  if (!spec.rope.divisors.empty()) return spec.rope.divisors;
  if (spec.rope.kind != spec::RopeKind::llama3) return {};
  spec::RopeSpec plain = spec.rope;
  plain.kind = spec::RopeKind::standard;
  const std::vector<float> slow = spec::rope_inv_freq(spec.rope, spec.head_dim, spec.max_positions),
                           fast = spec::rope_inv_freq(plain, spec.head_dim, spec.max_positions);
  std::vector<float> divisors;
  for (size_t i = 0; i < slow.size(); ++i) divisors.push_back(fast[i] / slow[i]);
  return divisors;
}

namespace {

void refuse_what_gguf_cannot_say(const spec::ModelSpec& s) {
  const bool is_gpt2 = s.family == spec::Family::gpt2;
  SINTER_CHECK(s.mtp_heads == 0, "a GGUF file has no place for extra heads (sinter_mtp_heads {})", s.mtp_heads);
  SINTER_CHECK(s.activation == (is_gpt2 ? spec::Activation::gelu_tanh : spec::Activation::silu),
               "a GGUF file of architecture {} cannot say this model's activation",
               spec::info_of(s.family).gguf_architecture);
  SINTER_CHECK(!s.scale_by_layer && s.attention_scale == 0,
               "a GGUF file cannot say this model's scale of attention (scale_attn_weights, "
               "scale_attn_by_inverse_layer_idx)");
  SINTER_CHECK(s.rope.kind != spec::RopeKind::dynamic, "a GGUF file cannot say dynamic scaling of RoPE");
  SINTER_CHECK(s.moe.num_experts == 0 || s.moe.norm_topk_prob || s.family == spec::Family::mixtral,
               "a GGUF file cannot say that experts' weights are not normalized (norm_topk_prob false)");
}

void set_rope(io::GgufWriter& writer, const spec::ModelSpec& s, const std::string& a) {
  writer.set_f32(a + "rope.freq_base", static_cast<float>(s.rope.theta));
  if (s.rope.kind != spec::RopeKind::linear && s.rope.kind != spec::RopeKind::yarn) return;
  const bool is_yarn = s.rope.kind == spec::RopeKind::yarn;
  writer.set_text(a + "rope.scaling.type", is_yarn ? "yarn" : "linear");
  writer.set_f32(a + "rope.scaling.factor", static_cast<float>(s.rope.factor));
  if (!is_yarn) return;
  writer.set_u32(a + "rope.scaling.original_context_length", static_cast<uint32_t>(s.rope.original_max_positions));
  writer.set_f32(a + "rope.scaling.attn_factor", spec::rope_scale(s.rope));
  writer.set_f32(a + "rope.scaling.yarn_beta_fast", static_cast<float>(s.rope.beta_fast));
  writer.set_f32(a + "rope.scaling.yarn_beta_slow", static_cast<float>(s.rope.beta_slow));
}

}  // namespace

void set_model_metadata(io::GgufWriter& writer, const spec::ModelSpec& s, const std::string& name) {
  refuse_what_gguf_cannot_say(s);
  const spec::FamilyInfo& family = spec::info_of(s.family);
  const std::string a = std::string(family.gguf_architecture) + ".";
  auto count = [&](const char* key, int64_t value) { writer.set_u32(a + key, static_cast<uint32_t>(value)); };
  writer.set_text("general.architecture", family.gguf_architecture);
  writer.set_text("general.type", "model");
  writer.set_text("general.name", name);
  count("block_count", s.num_layers);
  count("context_length", s.max_positions);
  count("embedding_length", s.hidden);
  count("feed_forward_length", s.ffn > 0 ? s.ffn : s.moe.ffn);
  count("attention.head_count", s.num_heads);
  count("vocab_size", s.vocab_size);
  if (s.norm == spec::NormKind::layer) {
    writer.set_f32(a + "attention.layer_norm_epsilon", s.norm_eps);
  } else {
    count("attention.head_count_kv", s.num_kv_heads);
    writer.set_f32(a + "attention.layer_norm_rms_epsilon", s.norm_eps);
    count("attention.key_length", s.head_dim);
    count("attention.value_length", s.head_dim);
    count("rope.dimension_count", s.head_dim);
    set_rope(writer, s, a);
  }
  if (s.moe.num_experts > 0) {
    count("expert_count", s.moe.num_experts);
    count("expert_used_count", s.moe.experts_per_token);
    count("expert_feed_forward_length", s.moe.ffn);
  }
  int64_t window = 0;
  for (int64_t l = 0; l < s.num_layers; ++l) window = std::max(window, s.window_of(l));
  if (window > 0) {
    SINTER_CHECK(std::all_of(s.window.begin(), s.window.end(), [&](int64_t w) { return w == window; }),
                 "a GGUF file cannot say that only some layers have a sliding window");
    count("attention.sliding_window", window);
    base::log_warning("llama.cpp passes over the sliding window ({} tokens) of architecture {}", window,
                      family.gguf_architecture);
  }
  writer.set_u32("general.quantization_version", 2);
}

namespace {

// As SentencePiece numbers them.
constexpr int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

bool is_byte_token(const std::string& text) {
  return text.size() == 6 && text.starts_with("<0x") && text.ends_with(">");
}

struct VocabLists {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
};

VocabLists list_tokens(const tokenizer::TokenizerParts& parts, int64_t vocab_size) {
  VocabLists lists;
  for (int32_t id = 0; id < vocab_size; ++id) {
    const tokenizer::AddedToken* added = parts.added_token(id);
    std::string text;
    int32_t type = kNormal;
    if (added) {
      text = added->content;
      type = id == parts.model.unknown_id ? kUnknown : added->special ? kControl : kUserDefined;
    } else if (parts.model.vocabulary.has(id)) {
      const std::string_view bytes = parts.model.vocabulary.bytes(id);
      const bool is_plain = !parts.model.over_bytes || parts.model.vocabulary.is_hidden(id);
      text = is_plain ? std::string(bytes) : tokenizer::bytes_to_alphabet(bytes);
      if (parts.model.byte_fallback && is_byte_token(text)) type = kByte;
      if (id == parts.model.unknown_id) type = kUnknown;
      if (parts.model.over_bytes && parts.model.vocabulary.is_hidden(id)) type = kUnused;
    } else {
      text = fmt::format("[PAD{}]", id);
      type = kUnused;
    }
    lists.tokens.push_back(std::move(text));
    lists.types.push_back(type);
  }
  return lists;
}

// A score for every token that follows from the order of the merges: the first merged to scores most.
std::vector<float> scores_of(const tokenizer::BpeModel& model, const VocabLists& lists) {
  std::vector<uint32_t> ranks(lists.tokens.size(), tokenizer::Merge::kNoRank);
  uint32_t last = 0;
  model.merges.for_each([&](int32_t, int32_t, const tokenizer::Merge& merge) {
    if (merge.id < 0 || static_cast<size_t>(merge.id) >= ranks.size()) return;
    uint32_t& rank = ranks[static_cast<size_t>(merge.id)];
    rank = std::min(rank, merge.rank);
    last = std::max(last, merge.rank);
  });
  std::vector<float> scores;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const bool is_plain = lists.types[i] == kNormal;
    scores.push_back(!is_plain                               ? 0.0f
                     : ranks[i] != tokenizer::Merge::kNoRank ? -static_cast<float>(ranks[i])
                                                             : -static_cast<float>(last + 1));
  }
  return scores;
}

std::vector<std::string> merges_of(const tokenizer::BpeModel& model) {
  std::vector<std::tuple<uint32_t, int32_t, int32_t>> all;
  model.merges.for_each(
      [&](int32_t left, int32_t right, const tokenizer::Merge& merge) { all.emplace_back(merge.rank, left, right); });
  std::sort(all.begin(), all.end());
  std::vector<std::string> merges;
  for (const auto& [rank, left, right] : all) {
    merges.push_back(tokenizer::bytes_to_alphabet(model.vocabulary.bytes(left)) + " " +
                     tokenizer::bytes_to_alphabet(model.vocabulary.bytes(right)));
  }
  return merges;
}

}  // namespace

void set_tokenizer_metadata(io::GgufWriter& writer, const tokenizer::Tokenizer& tokenizer, const spec::ModelSpec& spec,
                            const std::map<std::string, std::string>& chat_templates) {
  const tokenizer::TokenizerParts& parts = tokenizer.parts();
  const VocabLists lists = list_tokens(parts, spec.vocab_size);
  const bool is_byte_level = parts.model.over_bytes;
  writer.set_text("tokenizer.ggml.model", is_byte_level ? "gpt2" : "llama");
  if (is_byte_level) {
    const std::string pre = tokenizer::pre_name_of(tokenizer);
    SINTER_CHECK(!pre.empty(), "'{}': GGUF files have no name (tokenizer.ggml.pre) for this way to split a text: {}",
                 parts.origin, tokenizer.description());
    if (parts.normalizer)
      base::log_warning("'{}': the tokenizer's normalizer is lost: a GGUF file cannot say it", parts.origin);
    writer.set_text("tokenizer.ggml.pre", pre);
  } else {
    SINTER_CHECK(parts.model.byte_fallback && parts.model.continuing_prefix.empty() && parts.model.end_suffix.empty(),
                 "'{}': this tokenizer is neither byte-level nor SentencePiece BPE with byte fallback, the kinds that "
                 "GGUF files have: {}",
                 parts.origin, tokenizer.description());
    writer.set_text("tokenizer.ggml.pre", "default");
  }
  writer.set_texts("tokenizer.ggml.tokens", lists.tokens);
  if (!is_byte_level) writer.set_f32s("tokenizer.ggml.scores", scores_of(parts.model, lists));
  writer.set_i32s("tokenizer.ggml.token_type", lists.types);
  if (is_byte_level) writer.set_texts("tokenizer.ggml.merges", merges_of(parts.model));
  const tokenizer::SpecialIds& ids = tokenizer.special_ids();
  int64_t eos = ids.eos;
  if (eos < 0 && !spec.eos_tokens.empty()) eos = spec.eos_tokens[0];
  for (auto [name, id] : {std::pair<const char*, int64_t>{"bos", ids.bos >= 0 ? ids.bos : spec.bos_token},
                          {"eos", eos},
                          {"unknown", ids.unk},
                          {"padding", ids.pad}}) {
    if (id >= 0 && id < spec.vocab_size)
      writer.set_u32(fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<uint32_t>(id));
  }
  writer.set_bool("tokenizer.ggml.add_bos_token", !parts.around.before.empty());
  writer.set_bool("tokenizer.ggml.add_eos_token", !parts.around.after.empty());
  for (const auto& [name, source] : chat_templates)
    writer.set_text(name == "default" ? "tokenizer.chat_template" : "tokenizer.chat_template." + name, source);
}

}  // namespace sinter::models
