// `sinter data synth`: texts that a model writes from seed documents.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/verbs.h"
#include "data/dedup/exact.h"
#include "data/dedup/minhash.h"
#include "data/pipeline/map.h"
#include "data/pipeline/stages.h"
#include "data/text/characters.h"
#include "eval/results/journal.h"
#include "eval/results/report.h"
#include "eval/results/table.h"
#include "eval/score/server_backend.h"
#include "models/open_model.h"
#include "tokenizer/chat_template.h"

namespace sinter::cli {
namespace {

namespace jinja = tokenizer::jinja;

struct Flags {
  std::vector<std::string> inputs, stops;
  std::string prompt, model, server, output, work, system, dedup = "exact", device = "cpu", precision = "fp32";
  data::ReadOptions read;
  int64_t variants = 1, max_tokens = 512, limit = 0, connections = 8, seed = 1;
  double temperature = .8, top_p = .95;
  bool is_plain = false, is_filtered = false, as_json = false;
};

struct Writer {
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::unique_ptr<models::OpenModel> model;
  std::unique_ptr<tokenizer::ChatTemplate> chat;
  std::unique_ptr<eval::ScoringBackend> backend;
};

Writer open_writer(const Flags& flags) {
  Writer w;
  std::string key = flags.server + "\n" + flags.model;
  if (flags.server.empty()) {
    models::check_model_folder(flags.model);
    w.tokenizer = std::make_unique<tokenizer::Tokenizer>(tokenizer::Tokenizer::load(flags.model));
    w.model = std::make_unique<models::OpenModel>(models::open_model(
        flags.model, {core::parse_device(flags.device), models::parse_precision(flags.precision), false}));
    if (!flags.is_plain) {
      w.chat = std::make_unique<tokenizer::ChatTemplate>(tokenizer::ChatTemplate::load(flags.model));
    }
    w.backend = eval::make_model_backend(*w.model->transformer, *w.tokenizer, {});
    key = eval::hash_model(flags.model) + flags.precision;
  } else {
    eval::ServerBackendOptions options;
    options.url = flags.server;
    options.model = flags.model;
    options.concurrency = flags.connections;
    options.uses_chat = !flags.is_plain;
    options.system = flags.system;
    if (const char* api_key = std::getenv("OPENAI_API_KEY")) options.api_key = api_key;
    w.backend = eval::make_server_backend(options);
  }
  w.backend = eval::make_journal(std::move(w.backend), flags.work, key, "answers.jsonl");
  return w;
}

struct Asked {
  size_t seed;
  int64_t variant;
  std::string prompt;
};

// Every prompt of every seed; errors name the seed.
std::vector<Asked> make_prompts(const Flags& flags, const std::vector<data::Document>& seeds) {
  const std::string source = flags.prompt.starts_with('@') ? base::read_file(flags.prompt.substr(1)) : flags.prompt;
  const eval::Template prompt(source, flags.prompt.starts_with('@') ? flags.prompt.substr(1) : "--prompt");
  std::vector<Asked> asked;
  for (size_t i = 0; i < seeds.size(); ++i) {
    const data::Document& d = seeds[i];
    auto fields = jinja::make_dict();
    for (const auto& [name, value] : std::vector<std::pair<const char*, std::string>>{{"text", d.text},
                                                                                      {"id", d.id},
                                                                                      {"url", d.url},
                                                                                      {"title", d.title},
                                                                                      {"language", d.language},
                                                                                      {"source", d.source}}) {
      fields->set(jinja::Value(name), jinja::Value(value));
    }
    const jinja::Value document(std::move(fields));
    for (int64_t v = 0; v < flags.variants; ++v) {
      try {
        asked.push_back(
            {i, v, prompt.render(document, {{"variant", jinja::Value(v)}, {"number", jinja::Value(int64_t(i))}})});
      } catch (const base::Error& e) {
        base::fail("seed document '{}': {}", d.id, e.what());
      }
    }
  }
  return asked;
}

std::vector<std::string> ask(const Flags& flags, Writer& writer, const std::vector<Asked>& asked) {
  std::vector<eval::GenerationRequest> requests;
  for (const Asked& a : asked) {
    std::string prompt = a.prompt;
    if (writer.chat) {
      std::vector<eval::ChatMessage> messages;
      if (!flags.system.empty()) messages.push_back({"system", flags.system});
      messages.push_back({"user", prompt});
      prompt = eval::render_chat(*writer.chat, messages, false);
    }
    requests.push_back({.prompt = prompt,
                        .until = flags.stops,
                        .max_tokens = flags.max_tokens,
                        .temperature = flags.temperature,
                        .top_p = flags.top_p,
                        .seed = static_cast<uint64_t>(flags.seed) + 1000003 * static_cast<uint64_t>(a.variant)});
  }
  std::vector<std::string> answers(asked.size());
  size_t done = 0;
  base::ProgressLine line;
  const auto start = std::chrono::steady_clock::now();
  writer.backend->generate(requests, [&](size_t i, const eval::GenerationResult& result) {
    answers[i] = std::string(data::strip(result.text));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    ++done;
    line.update(fmt::format("{} of {} texts, {:.1f}/s, {} left (Ctrl-C: what is done stays in {})", done, asked.size(),
                            double(done) / std::max(seconds, 1e-3),
                            base::format_duration(seconds * double(asked.size() - done) / double(done)), flags.work));
  });
  line.finish();
  return answers;
}

// Which texts stay; counts those that go by reason.
std::vector<bool> choose(const Flags& flags, std::vector<data::Document>& texts,
                         std::map<std::string, int64_t>& dropped) {
  std::vector<bool> keep(texts.size(), true);
  data::PipelineRecipe recipe;
  recipe.scrub = false;
  const data::PipelineModels models(recipe);
  data::DocumentStages stages(recipe, models);
  for (size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].text.empty()) {
      keep[i] = false;
      ++dropped["empty"];
    } else if (flags.is_filtered) {
      const data::Outcome outcome = stages.process(texts[i]);
      keep[i] = outcome.is_kept();
      if (!keep[i]) ++dropped[fmt::format("{}/{}", outcome.stage, outcome.reason)];
    }
  }
  if (flags.dedup == "none") return keep;
  std::vector<bool> unique;
  if (flags.dedup == "exact") {
    std::vector<std::string_view> keys;
    for (const data::Document& d : texts) keys.push_back(d.text);
    unique = data::keep_first_of_equal(keys, {});
  } else {
    data::MinHasher hasher(recipe.minhash);
    const auto n = static_cast<size_t>(recipe.minhash.num_hashes());
    std::vector<uint64_t> signatures(texts.size() * n);
    std::vector<bool> has_signature;
    for (size_t i = 0; i < texts.size(); ++i) {
      has_signature.push_back(keep[i] && hasher.sign(texts[i].text, {signatures.data() + i * n, n}));
    }
    unique = data::find_near_duplicates(recipe.minhash, signatures, has_signature);
    unique.flip();
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    if (keep[i] && !unique[i]) {
      keep[i] = false;
      ++dropped["duplicate"];
    }
  }
  return keep;
}

void run_synth(Flags& flags) {
  if (flags.server.empty() && flags.model.empty()) base::fail_usage("expected --model MODEL, or --server URL");
  if (flags.work.empty()) flags.work = flags.output + ".work";
  data::MapResult read;
  std::vector<data::Document> seeds = data::load_documents(flags.inputs, flags.read, read);
  if (flags.limit > 0 && seeds.size() > static_cast<size_t>(flags.limit))
    seeds.resize(static_cast<size_t>(flags.limit));
  SINTER_CHECK(!seeds.empty(), "there are no seed documents in {}", flags.inputs[0]);
  const std::vector<Asked> asked = make_prompts(flags, seeds);
  Writer writer = open_writer(flags);
  const std::vector<std::string> answers = ask(flags, writer, asked);
  std::vector<data::Document> texts;
  for (size_t i = 0; i < asked.size(); ++i) {
    data::Document d;
    d.text = answers[i];
    d.id = fmt::format("{}/{}", seeds[asked[i].seed].id, asked[i].variant);
    d.source = "synth";
    texts.push_back(std::move(d));
  }
  std::map<std::string, int64_t> dropped;
  const std::vector<bool> keep = choose(flags, texts, dropped);
  std::vector<std::string> lines;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!keep[i]) continue;
    const nlohmann::ordered_json row{{"text", texts[i].text},
                                     {"id", texts[i].id},
                                     {"source", "synth"},
                                     {"seed", seeds[asked[i].seed].id},
                                     {"prompt", asked[i].prompt}};
    lines.push_back(row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
  data::write_lines(lines, flags.output);
  if (flags.as_json) {
    std::printf("%s\n",
                nlohmann::json{
                    {"seeds", seeds.size()}, {"asked", asked.size()}, {"written", lines.size()}, {"dropped", dropped}}
                    .dump(2)
                    .c_str());
    return;
  }
  for (const auto& [reason, count] : dropped)
    std::printf("%s: %s\n", reason.c_str(), base::format_grouped(count).c_str());
  std::printf("%s texts asked of %s seeds, %s written to %s\n", base::format_grouped(int64_t(asked.size())).c_str(),
              base::format_grouped(int64_t(seeds.size())).c_str(), base::format_grouped(int64_t(lines.size())).c_str(),
              flags.output.c_str());
}

}  // namespace

void add_data_synth(Command data) {
  auto flags = std::make_shared<Flags>();
  const Command verb =
      data.add_verb("synth", "texts that a model writes from seed documents: filtered, without duplicates");
  verb.option("inputs", &flags->inputs, "files or folders of seed documents").required();
  verb.option("--prompt", &flags->prompt,
              "Jinja over text, id, url, title, language, source, number and variant; @FILE reads it from a file")
      .required();
  verb.option("--model", &flags->model, "model folder; with --server: the model's name there (default: its first)");
  verb.option("--server", &flags->server, "an OpenAI-compatible server in its place (key: $OPENAI_API_KEY)");
  verb.option("--connections", &flags->connections, "with --server: requests at once").shows_default().at_least(1);
  verb.option("-o,--output", &flags->output, ".jsonl to write (.gz, .zst): text, id, source, seed, prompt").required();
  verb.option("--work", &flags->work,
              "folder of answers, from which a run that was killed goes on (default: OUTPUT.work)");
  verb.flag("--plain", &flags->is_plain, "the prompt is the text to go on from, not a message of a chat");
  verb.option("--system", &flags->system, "system instruction");
  verb.option("--variants", &flags->variants, "texts for each seed; `variant` counts from 0")
      .shows_default()
      .at_least(1);
  verb.option("--max-tokens", &flags->max_tokens, "longest text").shows_default().at_least(1);
  verb.option("--temperature", &flags->temperature, "0 takes the likeliest token").shows_default();
  verb.option("--top-p", &flags->top_p, "share of probability to draw from").shows_default();
  verb.option("--stop", &flags->stops, "text that ends an answer; may be given again");
  verb.option("--seed", &flags->seed, "of the draws").shows_default().at_least(0);
  verb.option("--limit", &flags->limit, "only so many seeds").at_least(1);
  verb.flag("--filter", &flags->is_filtered, "drop what the rules of Gopher, C4 and FineWeb would drop");
  verb.option("--dedup", &flags->dedup, "none, exact or minhash").shows_default().one_of({"none", "exact", "minhash"});
  verb.option("--text-key", &flags->read.text_key, "field that holds the text").shows_default();
  verb.option("--device", &flags->device, "cpu, cuda or cuda:N").shows_default();
  verb.option("--precision", &flags->precision, "fp32, bf16 or fp16").shows_default();
  verb.flag("--json", &flags->as_json, "print the result as JSON");
  verb.footer(
      "Examples:\n"
      "  sinter data synth wiki.jsonl --model MODEL -o qa.jsonl --prompt 'Three questions with answers on: {{ "
      "text[:2000] }}'\n"
      "  sinter data synth topics.jsonl --server http://127.0.0.1:8000 --prompt @story.jinja --variants 4 -o "
      "stories.jsonl.zst");
  verb.on_run([flags] { run_synth(*flags); });
}

}  // namespace sinter::cli
