#include "plan/models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/text.h"
#include "spec/hf_config.h"

namespace sinter::plan {
namespace {

using spec::Family;
using spec::ModelSpec;

struct Sizes {
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, positions;
};

ModelSpec make_gpt2(int64_t layers, int64_t hidden, int64_t heads, int64_t positions = 1024) {
  ModelSpec s;
  s.family = Family::gpt2;
  s.num_layers = layers;
  s.hidden = hidden;
  s.num_heads = s.num_kv_heads = heads;
  s.head_dim = hidden / heads;
  s.ffn = 4 * hidden;
  s.vocab_size = 50257;
  s.max_positions = positions;
  s.norm = spec::NormKind::layer;
  s.activation = spec::Activation::gelu_tanh;
  s.gated_mlp = false;
  s.learned_positions = s.tied_head = s.qkv_bias = s.out_bias = s.mlp_bias = true;
  return s;
}

ModelSpec make_gated(Family family, const Sizes& z, double theta, bool tied = false) {
  ModelSpec s;
  s.family = family;
  s.num_layers = z.layers;
  s.hidden = z.hidden;
  s.num_heads = z.heads;
  s.num_kv_heads = z.kv_heads;
  s.head_dim = z.head_dim;
  s.ffn = z.ffn;
  s.vocab_size = z.vocab;
  s.max_positions = z.positions;
  s.rope.kind = spec::RopeKind::standard;
  s.rope.theta = theta;
  s.rope.original_max_positions = z.positions;
  s.tied_head = tied;
  s.qkv_bias = family == Family::qwen2;
  s.qk_norm = family == Family::qwen3 || family == Family::qwen3_moe;
  if (s.qkv_bias || s.qk_norm) s.norm_eps = 1e-6f;
  return s;
}

ModelSpec make_llama31(const Sizes& z, double factor = 8.0, bool tied = false) {
  ModelSpec s = make_gated(Family::llama, z, 500000.0, tied);
  s.rope.kind = spec::RopeKind::llama3;
  s.rope.factor = factor;
  s.rope.original_max_positions = 8192;
  return s;
}

ModelSpec make_sparse(Family family, const Sizes& z, double theta, int64_t experts, int64_t top_k, int64_t expert_ffn) {
  ModelSpec s = make_gated(family, z, theta);
  s.moe = {experts, top_k, expert_ffn, true, 0.001f};
  s.sparse_layers.assign(static_cast<size_t>(z.layers), 1);
  return s;
}

ModelSpec with_window(ModelSpec s, int64_t window) {
  s.window.assign(static_cast<size_t>(s.num_layers), window);
  return s;
}

std::vector<ModelPreset> make_presets() {
  using enum Family;
  //                                layers hidden heads kv  dim    ffn   vocab positions
  return {
      {"gpt2", {"gpt2-small", "gpt2-124m"}, make_gpt2(12, 768, 12)},
      {"gpt2-medium", {"gpt2-355m"}, make_gpt2(24, 1024, 16)},
      {"gpt2-large", {"gpt2-774m"}, make_gpt2(36, 1280, 20)},
      {"gpt2-xl", {"gpt2-1.5b"}, make_gpt2(48, 1600, 25)},
      {"gpt3-175b", {"gpt3"}, make_gpt2(96, 12288, 96, 2048)},
      {"llama-7b", {"llama-1-7b"}, make_gated(llama, {32, 4096, 32, 32, 128, 11008, 32000, 2048}, 1e4)},
      {"llama-13b", {"llama-1-13b"}, make_gated(llama, {40, 5120, 40, 40, 128, 13824, 32000, 2048}, 1e4)},
      {"llama-33b", {"llama-30b", "llama-1-33b"}, make_gated(llama, {60, 6656, 52, 52, 128, 17920, 32000, 2048}, 1e4)},
      {"llama-65b", {"llama-1-65b"}, make_gated(llama, {80, 8192, 64, 64, 128, 22016, 32000, 2048}, 1e4)},
      {"llama-2-7b", {}, make_gated(llama, {32, 4096, 32, 32, 128, 11008, 32000, 4096}, 1e4)},
      {"llama-2-13b", {}, make_gated(llama, {40, 5120, 40, 40, 128, 13824, 32000, 4096}, 1e4)},
      {"llama-2-34b", {}, make_gated(llama, {48, 8192, 64, 8, 128, 22016, 32000, 4096}, 1e4)},
      {"codellama-34b", {}, make_gated(llama, {48, 8192, 64, 8, 128, 22016, 32000, 16384}, 1e6)},
      {"llama-2-70b", {}, make_gated(llama, {80, 8192, 64, 8, 128, 28672, 32000, 4096}, 1e4)},
      {"llama-3-8b", {}, make_gated(llama, {32, 4096, 32, 8, 128, 14336, 128256, 8192}, 5e5)},
      {"llama-3-70b", {}, make_gated(llama, {80, 8192, 64, 8, 128, 28672, 128256, 8192}, 5e5)},
      {"llama-3.1-8b", {}, make_llama31({32, 4096, 32, 8, 128, 14336, 128256, 131072})},
      {"llama-3.1-70b", {"llama-3.3-70b"}, make_llama31({80, 8192, 64, 8, 128, 28672, 128256, 131072})},
      {"llama-3.1-405b", {"llama-3-405b"}, make_llama31({126, 16384, 128, 8, 128, 53248, 128256, 131072})},
      {"llama-3.2-1b", {}, make_llama31({16, 2048, 32, 8, 64, 8192, 128256, 131072}, 32.0, true)},
      {"llama-3.2-3b", {}, make_llama31({28, 3072, 24, 8, 128, 8192, 128256, 131072}, 32.0, true)},
      {"tinyllama-1.1b",
       {"tinyllama", "tinyllama-1.1b-v1.0"},
       make_gated(llama, {22, 2048, 32, 4, 64, 5632, 32000, 2048}, 1e4)},
      {"smollm2-135m", {}, make_gated(llama, {30, 576, 9, 3, 64, 1536, 49152, 8192}, 1e5, true)},
      {"smollm2-360m", {}, make_gated(llama, {32, 960, 15, 5, 64, 2560, 49152, 8192}, 1e5, true)},
      {"smollm2-1.7b", {}, make_gated(llama, {24, 2048, 32, 32, 64, 8192, 49152, 8192}, 1.3e5, true)},
      {"mistral-7b-v0.1",
       {"mistral-7b"},
       with_window(make_gated(mistral, {32, 4096, 32, 8, 128, 14336, 32000, 32768}, 1e4), 4096)},
      {"mistral-7b-v0.3", {}, make_gated(mistral, {32, 4096, 32, 8, 128, 14336, 32768, 32768}, 1e6)},
      {"mistral-nemo-12b",
       {"mistral-nemo", "mistral-nemo-2407"},
       make_gated(mistral, {40, 5120, 32, 8, 128, 14336, 131072, 131072}, 1e6)},
      {"mistral-small-24b", {}, make_gated(mistral, {40, 5120, 32, 8, 128, 32768, 131072, 32768}, 1e8)},
      {"mistral-large-123b",
       {"mistral-large-2407"},
       make_gated(mistral, {88, 12288, 96, 8, 128, 28672, 32768, 131072}, 1e6)},
      {"mixtral-8x7b",
       {"mixtral-8x7b-v0.1"},
       make_sparse(mixtral, {32, 4096, 32, 8, 128, 14336, 32000, 32768}, 1e6, 8, 2, 14336)},
      {"mixtral-8x22b",
       {"mixtral-8x22b-v0.1"},
       make_sparse(mixtral, {56, 6144, 48, 8, 128, 16384, 32000, 65536}, 1e6, 8, 2, 16384)},
      {"mixtral-8x22b-v0.3",
       {"mixtral-8x22b-instruct", "mixtral-8x22b-instruct-v0.1"},
       make_sparse(mixtral, {56, 6144, 48, 8, 128, 16384, 32768, 65536}, 1e6, 8, 2, 16384)},
      {"qwen2-0.5b", {"qwen2.5-0.5b"}, make_gated(qwen2, {24, 896, 14, 2, 64, 4864, 151936, 32768}, 1e6, true)},
      {"qwen2-1.5b", {"qwen2.5-1.5b"}, make_gated(qwen2, {28, 1536, 12, 2, 128, 8960, 151936, 32768}, 1e6, true)},
      {"qwen2-7b", {"qwen2.5-7b"}, make_gated(qwen2, {28, 3584, 28, 4, 128, 18944, 152064, 131072}, 1e6)},
      {"qwen2-72b", {"qwen2.5-72b"}, make_gated(qwen2, {80, 8192, 64, 8, 128, 29568, 152064, 131072}, 1e6)},
      {"qwen2.5-3b", {}, make_gated(qwen2, {36, 2048, 16, 2, 128, 11008, 151936, 32768}, 1e6, true)},
      {"qwen2.5-14b", {}, make_gated(qwen2, {48, 5120, 40, 8, 128, 13824, 152064, 131072}, 1e6)},
      {"qwen2.5-32b", {}, make_gated(qwen2, {64, 5120, 40, 8, 128, 27648, 152064, 131072}, 1e6)},
      {"qwen3-0.6b", {}, make_gated(qwen3, {28, 1024, 16, 8, 128, 3072, 151936, 40960}, 1e6, true)},
      {"qwen3-1.7b", {}, make_gated(qwen3, {28, 2048, 16, 8, 128, 6144, 151936, 40960}, 1e6, true)},
      {"qwen3-4b", {}, make_gated(qwen3, {36, 2560, 32, 8, 128, 9728, 151936, 40960}, 1e6, true)},
      {"qwen3-4b-2507", {}, make_gated(qwen3, {36, 2560, 32, 8, 128, 9728, 151936, 262144}, 5e6, true)},
      {"qwen3-8b", {}, make_gated(qwen3, {36, 4096, 32, 8, 128, 12288, 151936, 40960}, 1e6)},
      {"qwen3-14b", {}, make_gated(qwen3, {40, 5120, 40, 8, 128, 17408, 151936, 40960}, 1e6)},
      {"qwen3-32b", {}, make_gated(qwen3, {64, 5120, 64, 8, 128, 25600, 151936, 40960}, 1e6)},
      {"qwen3-30b-a3b",
       {"qwen3-30b"},
       make_sparse(qwen3_moe, {48, 2048, 32, 4, 128, 6144, 151936, 40960}, 1e6, 128, 8, 768)},
      {"qwen3-30b-a3b-2507",
       {},
       make_sparse(qwen3_moe, {48, 2048, 32, 4, 128, 6144, 151936, 262144}, 1e7, 128, 8, 768)},
      {"qwen3-235b-a22b",
       {"qwen3-235b"},
       make_sparse(qwen3_moe, {94, 4096, 64, 4, 128, 12288, 151936, 40960}, 1e6, 128, 8, 1536)},
      {"qwen3-235b-a22b-2507",
       {},
       make_sparse(qwen3_moe, {94, 4096, 64, 4, 128, 12288, 151936, 262144}, 5e6, 128, 8, 1536)},
  };
}

// "meta-llama/Llama-3.1-70B-Instruct" -> "llama3.170b", or with every word "llama3.170binstruct"
std::string plain(std::string_view text, bool every_word = false) {
  if (size_t slash = text.rfind('/'); slash != std::string_view::npos) text.remove_prefix(slash + 1);
  std::string out, word;
  static const std::vector<std::string> kNoise{"meta", "hf", "instruct", "chat", "base", "it", "thinking"};
  auto flush = [&] {
    if (every_word || std::find(kNoise.begin(), kNoise.end(), word) == kNoise.end()) out += word;
    word.clear();
  };
  for (char c : text) {
    if (c == '-' || c == '_' || c == ' ' || c == ':') {
      flush();
    } else {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  flush();
  return out;
}

std::vector<std::string> names_of(const ModelPreset& preset) {
  std::vector<std::string> names{preset.name};
  names.insert(names.end(), preset.aliases.begin(), preset.aliases.end());
  return names;
}

}  // namespace

const std::vector<ModelPreset>& model_presets() {
  static const std::vector<ModelPreset> presets = make_presets();
  return presets;
}

const ModelPreset* find_preset(const std::string& text) {
  for (bool every_word : {true, false}) {  // a variant with its own vocabulary is found by its whole name first
    const std::string wanted = plain(text, every_word);
    for (const ModelPreset& preset : model_presets()) {
      for (const std::string& name : names_of(preset)) {
        if (plain(name, every_word) == wanted) return &preset;
      }
    }
  }
  return nullptr;
}

ResolvedModel resolve_model(const std::string& text) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (text.ends_with(".json")) return {text, spec::load_hf_config(text), text};
  if (fs::is_directory(text, ignored)) {
    const std::string config = (fs::path(text) / "config.json").string();
    return {text, spec::load_hf_config(config), config};
  }
  if (const ModelPreset* preset = find_preset(text)) return {preset->name, preset->spec, ""};
  const std::string wanted = plain(text);
  std::vector<std::string> keys, names;
  for (const ModelPreset& preset : model_presets()) {
    for (const std::string& name : names_of(preset)) {
      keys.push_back(plain(name));
      names.push_back(preset.name);
    }
  }
  // "llama3" begins the names of several; else the one that a typing slip is nearest to.
  std::vector<std::string> meant;
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool is_new = std::find(meant.begin(), meant.end(), "'" + names[i] + "'") == meant.end();
    if (wanted.size() >= 3 && keys[i].starts_with(wanted) && is_new) meant.push_back("'" + names[i] + "'");
  }
  if (const std::string nearest = base::nearest_name(wanted, keys); meant.empty() && !nearest.empty())
    meant = {"'" + names[static_cast<size_t>(std::find(keys.begin(), keys.end(), nearest) - keys.begin())] + "'"};
  if (meant.size() > 4) meant.resize(4);
  const std::string hint =
      meant.empty() ? "" : fmt::format("; did you mean {}?", fmt::join(meant, meant.size() == 2 ? " or " : ", "));
  if (text.ends_with(".toml"))
    base::fail_usage("'{}' is a recipe: sinter train {} --dry-run, with --on 16x8xH100 for machines that are not here",
                     text, text);
  base::fail_usage(
      "'{}' is neither a folder with a config.json nor one of the {} models that `sinter plan models` lists{}", text,
      model_presets().size(), hint);
}

}  // namespace sinter::plan
