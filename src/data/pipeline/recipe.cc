#include "data/pipeline/recipe.h"

#include <toml++/toml.h>

#include <functional>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace sinter::data {
namespace {

// The keys of one table; each takes its value or throws.
class TableReader {
 public:
  TableReader(std::string name, const std::string& origin) : name_(std::move(name)), origin_(origin) {}
  using Setter = std::function<void(const toml::node&)>;

  void text(const char* key, std::string& to) {
    add(key, [this, key, &to](const toml::node& n) { to = need<std::string>(n, key, "a string"); });
  }
  void flag(const char* key, bool& to) {
    add(key, [this, key, &to](const toml::node& n) { to = need<bool>(n, key, "true or false"); });
  }
  void number(const char* key, double& to, double least, double most) {
    add(key, [=, this, &to](const toml::node& n) {
      const auto value =
          n.is_integer() ? std::optional<double>(static_cast<double>(*n.value<int64_t>())) : n.value_exact<double>();
      SINTER_CHECK(value && *value >= least && *value <= most, "{}: {} is {}; expected a number from {} to {}", origin_,
                   path(key), written(n), least, most);
      to = *value;
    });
  }
  template <class Int>
  void integer(const char* key, Int& to, int64_t least) {
    add(key, [=, this, &to](const toml::node& n) {
      const auto value = n.value_exact<int64_t>();
      SINTER_CHECK(value && *value >= least, "{}: {} is {}; expected a whole number of at least {}", origin_, path(key),
                   written(n), least);
      to = static_cast<Int>(*value);
    });
  }
  void texts(const char* key, std::vector<std::string>& to) {
    add(key, [this, key, &to](const toml::node& n) {
      to.clear();
      if (n.is_string()) {
        to.push_back(*n.value<std::string>());
        return;
      }
      SINTER_CHECK(n.is_array(), "{}: {} is {}; expected strings in brackets", origin_, path(key), written(n));
      for (const toml::node& one : *n.as_array()) to.push_back(need<std::string>(one, key, "strings in brackets"));
    });
  }
  void add(const char* key, Setter setter) { setters_[key] = std::move(setter); }

  void read(const toml::table& table) const {
    for (const auto& [key, node] : table) {
      const auto at = setters_.find(std::string(key.str()));
      if (at == setters_.end()) {
        std::vector<std::string> names;
        for (const auto& [name, setter] : setters_) names.push_back(name);
        base::fail("{}: unknown key {}{}", origin_, path(std::string(key.str())), base::did_you_mean(key.str(), names));
      }
      at->second(node);
    }
  }

 private:
  std::string path(const std::string& key) const { return name_.empty() ? key : name_ + "." + key; }
  static std::string written(const toml::node& node) {
    std::ostringstream out;
    node.visit([&](const auto& n) {
      if constexpr (toml::is_table<decltype(n)>) {
        out << "a table";
      } else {
        out << n;
      }
    });
    return out.str();
  }
  template <class T>
  T need(const toml::node& node, const char* key, const char* what) const {
    const auto value = node.value_exact<T>();
    SINTER_CHECK(value, "{}: {} is {}; expected {}", origin_, path(key), written(node), what);
    return *value;
  }
  std::string name_;
  const std::string& origin_;
  std::map<std::string, Setter> setters_;
};

void add_limits(TableReader& t, RuleLimits& l) {
  t.number("dup_para_frac", l.dup_para_frac, 0, 1);
  t.number("dup_para_char_frac", l.dup_para_char_frac, 0, 1);
  t.number("dup_line_frac", l.dup_line_frac, 0, 1);
  t.number("dup_line_char_frac", l.dup_line_char_frac, 0, 1);
  static constexpr const char* kTop[] = {"top_2", "top_3", "top_4"};
  for (size_t i = 0; i < 3; ++i) t.number(kTop[i], l.top[i], 0, 10);
  static constexpr const char* kDup[] = {"dup_5", "dup_6", "dup_7", "dup_8", "dup_9", "dup_10"};
  for (size_t i = 0; i < 6; ++i) t.number(kDup[i], l.dup[i], 0, 1);
  t.number("min_words", l.min_words, 0, 1e12);
  t.number("max_words", l.max_words, 0, 1e12);
  t.number("min_mean_word_length", l.min_mean_word_length, 0, 1e6);
  t.number("max_mean_word_length", l.max_mean_word_length, 0, 1e6);
  t.number("max_hash_ratio", l.max_hash_ratio, 0, 1e6);
  t.number("max_ellipsis_ratio", l.max_ellipsis_ratio, 0, 1e6);
  t.number("max_bullet_lines", l.max_bullet_lines, 0, 1);
  t.number("max_ellipsis_lines", l.max_ellipsis_lines, 0, 1);
  t.number("min_alpha_ratio", l.min_alpha_ratio, 0, 1);
  t.number("min_stop_words", l.min_stop_words, 0, 8);
  t.number("min_sentences", l.min_sentences, 0, 1e12);
  t.number("min_line_punct_ratio", l.min_line_punct_ratio, 0, 1);
  t.number("max_short_line_ratio", l.max_short_line_ratio, 0, 1);
  t.number("max_char_dup_ratio", l.max_char_dup_ratio, 0, 1);
  t.number("max_list_ratio", l.max_list_ratio, 0, 1e6);
}

std::string last_part(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

void read_inputs(const toml::node& node, const std::string& origin, PipelineRecipe& recipe) {
  SINTER_CHECK(node.is_array_of_tables(), "{}: input is no list of tables; expected [[input]] with a path", origin);
  for (const toml::node& one : *node.as_array()) {
    PipelineInput input;
    TableReader t("input", origin);
    t.text("path", input.path);
    t.text("source", input.source);
    t.number("epochs", input.epochs, 0, 1000);
    t.number("weight", input.weight, 0, 1e12);
    t.read(*one.as_table());
    SINTER_CHECK(!input.path.empty(), "{}: an [[input]] has no path", origin);
    if (input.source.empty()) input.source = last_part(input.path);
    recipe.inputs.push_back(std::move(input));
  }
}

using Tables = std::map<std::string, TableReader>;

Tables make_tables(PipelineRecipe& r, const std::string& origin) {
  Tables tables;
  auto table = [&](const char* name) -> TableReader& {
    return tables.emplace(name, TableReader(name, origin)).first->second;
  };
  TableReader& run = table("run");
  run.text("output", r.output);
  run.integer("part_bytes", r.part_bytes, 1024);
  run.integer("memory", r.memory, 1 << 20);
  run.integer("samples", r.samples, 0);
  TableReader& read = table("read");
  read.text("text_key", r.read.text_key);
  read.text("id_key", r.read.id_key);
  read.text("url_key", r.read.url_key);
  read.text("separator", r.read.separator);
  read.integer("max_record_bytes", r.read.max_record_bytes, 1024);
  table("extract").flag("enabled", r.extract);
  TableReader& language = table("language");
  language.text("model", r.language_model);
  language.texts("keep", r.languages);
  language.number("threshold", r.language_threshold, 0, 1);
  TableReader& url = table("url");
  url.text("domains", r.url_domains);
  url.text("urls", r.url_urls);
  url.text("banned_words", r.url_words);
  url.text("soft_banned_words", r.url_soft_words);
  url.text("banned_subwords", r.url_subwords);
  url.text("public_suffixes", r.url_suffixes);
  TableReader& filter = table("filter");
  filter.flag("gopher_repetition", r.gopher_repetition);
  filter.flag("gopher_quality", r.gopher_quality);
  filter.flag("c4", r.c4);
  filter.flag("c4_terminal", r.c4_terminal);
  filter.flag("fineweb", r.fineweb);
  filter.text("bad_words", r.bad_words);
  filter.text("nsfw_model", r.nsfw_model);
  filter.text("nsfw_label", r.nsfw_label);
  filter.number("nsfw_threshold", r.nsfw_threshold, 0, 1);
  add_limits(table("limits"), r.limits);
  TableReader& scrub = table("scrub");
  scrub.flag("enabled", r.scrub);
  scrub.flag("emails", r.scrub_options.emails);
  scrub.flag("ips", r.scrub_options.ips);
  scrub.flag("phones", r.scrub_options.phones);
  scrub.flag("keys", r.scrub_options.keys);
  TableReader& dedup = table("dedup");
  dedup.flag("exact", r.dedup_exact);
  dedup.flag("minhash", r.dedup_minhash);
  dedup.integer("ngram", r.minhash.ngram, 1);
  dedup.integer("bands", r.minhash.bands, 1);
  dedup.integer("rows", r.minhash.rows, 1);
  dedup.integer("seed", r.minhash.seed, 0);
  TableReader& decontaminate = table("decontaminate");
  decontaminate.texts("items", r.decontaminate);
  decontaminate.texts("tasks", r.decontaminate_tasks);
  decontaminate.text("data", r.decontaminate_data);
  decontaminate.integer("ngram", r.decontaminate_ngram, 1);
  TableReader& rank = table("rank");
  rank.text("model", r.rank_model);
  rank.text("label", r.rank_label);
  rank.number("keep", r.rank_keep, 0, 1);
  rank.text("arpa", r.perplexity_model);
  rank.text("sinter", r.scorer_model);
  rank.text("by", r.rank_by);
  TableReader& mix = table("mix");
  mix.add("by", [&r, &origin](const toml::node& n) {
    const auto by = n.value_exact<std::string>();
    SINTER_CHECK(by == "epochs" || by == "weights", "{}: mix.by is {}; expected \"epochs\" or \"weights\"", origin,
                 by ? "'" + *by + "'" : "no string");
    r.mixes_by_weight = by == "weights";
  });
  mix.number("temperature", r.mix_temperature, 0, 1000);
  mix.number("most_epochs", r.most_epochs, 0, 1000);
  TableReader& tokenize = table("tokenize");
  tokenize.text("tokenizer", r.tokenizer);
  tokenize.flag("bos", r.add_bos);
  tokenize.flag("eos", r.add_eos);
  return tables;
}

// section.key=value, the value as TOML or a bare string.
void apply_override(toml::table& document, const std::string& word) {
  const size_t equals = word.find('='), dot = word.find('.');
  if (equals == std::string::npos || dot == std::string::npos || dot > equals)
    base::fail_usage("'{}' is no override; expected section.key=value", word);
  const std::string section = word.substr(0, dot), key = word.substr(dot + 1, equals - dot - 1),
                    given = word.substr(equals + 1);
  const std::string value = given.starts_with('.') ? "0" + given : given;  // .5 is no number of TOML's
  toml::table one;
  try {
    one = toml::parse("v = " + value);
  } catch (const toml::parse_error&) {
    one.insert_or_assign("v", given);
  }
  if (!document[section].is_table()) document.insert_or_assign(section, toml::table{});
  one.begin()->second.visit([&](auto& node) { document[section].as_table()->insert_or_assign(key, node); });
}

void choose_rank(PipelineRecipe& r, const std::string& origin) {
  const std::vector<std::pair<std::string, bool>> ways{{"classifier", !r.rank_model.empty()},
                                                       {"arpa", !r.perplexity_model.empty()},
                                                       {"sinter", !r.scorer_model.empty()}};
  if (r.rank_by.empty()) {
    for (const auto& [name, is_there] : ways) {
      if (is_there && r.rank_by.empty()) r.rank_by = name;
    }
    SINTER_CHECK(r.rank_keep >= 1 || !r.rank_by.empty(),
                 "{}: rank.keep is {}, and there is nothing to rank by; expected rank.model, rank.arpa or rank.sinter",
                 origin, r.rank_keep);
    return;
  }
  const bool is_there =
      std::any_of(ways.begin(), ways.end(), [&](const auto& w) { return w.first == r.rank_by && w.second; });
  SINTER_CHECK(is_there,
               "{}: rank.by is '{}'; expected classifier (with rank.model), arpa (with rank.arpa) or sinter (with "
               "rank.sinter)",
               origin, r.rank_by);
}

void set_fingerprints(toml::table document, PipelineRecipe& recipe) {
  auto erase = [&](const char* table, std::initializer_list<const char*> keys) {
    if (auto* t = document[table].as_table()) {
      for (const char* key : keys) t->erase(key);
    }
  };
  auto written = [&] {
    std::ostringstream out;
    out << document;
    return out.str();
  };
  erase("run", {"output", "memory"});  // where the run stands and how much memory it has do not decide its bytes
  recipe.fingerprint = written();
  document.erase("mix");
  document.erase("tokenize");
  erase("rank", {"keep"});
  for (toml::node& input : *document["input"].as_array()) {
    input.as_table()->erase("epochs");
    input.as_table()->erase("weight");
  }
  recipe.document_fingerprint = written();
}

}  // namespace

PipelineRecipe parse_pipeline(std::string_view text, const std::string& origin,
                              const std::vector<std::string>& overrides) {
  PipelineRecipe recipe;
  toml::table document;
  try {
    document = toml::parse(text, origin);
  } catch (const toml::parse_error& e) {
    base::fail("{} line {}: {}", origin, e.source().begin.line, e.description());
  }
  for (const std::string& word : overrides) apply_override(document, word);
  const Tables tables = make_tables(recipe, origin);
  for (const auto& [key, node] : document) {
    const std::string name(key.str());
    if (name == "input") {
      read_inputs(node, origin, recipe);
      continue;
    }
    const auto at = tables.find(name);
    if (at == tables.end()) {
      std::vector<std::string> names{"input"};
      for (const auto& [table, reader] : tables) names.push_back(table);
      base::fail("{}: unknown table [{}]{}", origin, name, base::did_you_mean(name, names));
    }
    SINTER_CHECK(node.is_table(), "{}: {} is a value; expected a table [{}]", origin, name, name);
    at->second.read(*node.as_table());
  }
  SINTER_CHECK(!recipe.inputs.empty(), "{}: there is no [[input]]; expected at least one with a path", origin);
  SINTER_CHECK(!recipe.output.empty(), "{}: run.output is missing; expected a folder for the results", origin);
  SINTER_CHECK(recipe.rank_model.empty() == recipe.rank_label.empty(), "{}: rank.model and rank.label go together",
               origin);
  SINTER_CHECK(recipe.nsfw_model.empty() == recipe.nsfw_label.empty(),
               "{}: filter.nsfw_model and filter.nsfw_label go together", origin);
  SINTER_CHECK(recipe.languages.empty() || !recipe.language_model.empty(),
               "{}: language.keep is given without language.model; expected a fastText file, as lid.176.ftz", origin);
  choose_rank(recipe, origin);
  set_fingerprints(std::move(document), recipe);
  return recipe;
}

PipelineRecipe load_pipeline(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_pipeline(base::read_file(path), path, overrides);
}

}  // namespace sinter::data
