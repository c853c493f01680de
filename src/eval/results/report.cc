#include "eval/results/report.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "eval/checkers/checkers.h"
#include "eval/results/page.h"

namespace sinter::eval {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json sample_json(const TaskRun& run, const EvalSample& sample) {
  const Question& q = sample.question;
  Json j{{"doc_id", q.document}, {"line", run.documents.lines[q.document]}};
  tokenizer::jinja::Meter meter(size_t{1} << 40);
  j["doc"] = Json::parse(tokenizer::jinja::to_json(run.documents.documents[q.document], {}, meter));
  j["target"] = q.gold >= 0 ? Json(q.gold) : Json(q.target);
  j["few_shot"] = q.examples;
  Json arguments = Json::array();
  if (run.task->kind == TaskKind::rolling) {
    arguments.push_back({q.target});
  } else if (run.task->kind == TaskKind::generate) {
    arguments.push_back({q.contexts[0]});
  } else {
    for (size_t i = 0; i < q.num_choices(); ++i) arguments.push_back({q.context(i), q.continuation(i)});
  }
  j["arguments"] = arguments;
  Json responses = Json::array();
  for (const Score& score : sample.scores) responses.push_back({score.log_likelihood, score.is_greedy});
  for (const GenerationResult& generation : sample.generations) responses.push_back(generation.text);
  j["resps"] = responses;
  for (size_t f = 0; f < sample.filtered.size(); ++f) {
    Json own;
    if (!sample.filtered[f].answers.empty()) own["answers"] = sample.filtered[f].answers;
    for (const SampleMetric& m : sample.filtered[f].metrics) own[m.name] = m.value;
    j["filtered"][run.task->filters[f].name] = own;
  }
  return j;
}

}  // namespace

std::string hash_model(const std::string& folder) {
  std::vector<fs::path> files;
  if (fs::is_directory(folder)) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string ending = entry.path().extension().string();
      if (entry.path().filename() == "config.json" || ending == ".safetensors") files.push_back(entry.path());
    }
  } else {
    files.emplace_back(folder);
  }
  std::sort(files.begin(), files.end());
  uint64_t hash = 0;
  for (const fs::path& file : files) {
    const base::MappedFile mapped(file.string());
    const std::span<const std::byte> bytes = mapped.bytes();
    hash = base::hash_text(file.filename().string(), hash ^ bytes.size());
    for (size_t at = 0; at < bytes.size(); at += std::max<size_t>(bytes.size() / 64, 1)) {  // 64 places
      hash = base::hash_bytes(bytes.subspan(at, std::min<size_t>(4096, bytes.size() - at)), hash);
    }
  }
  return fmt::format("{:016x}", hash);
}

Json make_report(const std::vector<TaskRun>& runs, const ResultTable& table, const TaskSet& set, const RunInfo& info) {
  Json report;
  for (const ResultRow& row : table.rows) {
    Json own, better;  // ordered_json keeps its keys in a vector: a reference into it would not survive the next key
    own["alias"] = (row.depth > 0 ? std::string(static_cast<size_t>(row.depth), ' ') + "- " : "") + row.alias;
    own["sample_len"] = row.num_samples;
    for (const Aggregate& a : row.aggregates) {
      own[a.metric + "," + a.filter] = a.value;
      own[a.metric + "_stderr," + a.filter] = a.error ? Json(*a.error) : Json("N/A");
      better[a.metric] = a.higher_is_better;
    }
    report["results"][row.name] = own;
    report["higher_is_better"][row.name] = better;
    if (row.is_group) {
      report["groups"][row.name] = own;
      report["group_subtasks"][row.name] = set.groups.at(row.name).members;
    }
    report["versions"][row.name] = row.version;
    if (row.num_few_shot >= 0) report["n-shot"][row.name] = row.num_few_shot;
  }
  for (const TaskRun& run : runs) {
    const Task& task = *run.task;
    report["n-samples"][task.name] = {{"original", run.documents.size()}, {"effective", run.samples.size()}};
    report["configs"][task.name] = {{"task", task.name},
                                    {"file", task.origin},
                                    {"data", run.documents.path},
                                    {"num_fewshot", run.num_few_shot},
                                    {"version", task.version}};
    std::string questions;
    for (const EvalSample& s : run.samples) {
      for (const std::string& c : s.question.contexts) questions += c + "\n";
      for (const std::string& c : s.question.continuations) questions += c + "\n";
    }
    report["task_hashes"][task.name] = fmt::format("{:016x}", base::hash_text(questions));
    report["task_file_hashes"][task.name] = fmt::format("{:016x}", base::hash_text(task.source));
  }
  report["config"] = {{"model", "sinter"},
                      {"model_args", info.model},
                      {"device", info.device},
                      {"dtype", info.precision},
                      {"limit", info.limit > 0 ? Json(info.limit) : Json(nullptr)},
                      {"bootstrap_iters", info.bootstrap},
                      {"apply_chat_template", info.applies_chat}};
  report["model_name"] = info.model;
  report["model_hash"] = info.model_hash;
  report["date"] = static_cast<int64_t>(std::time(nullptr));
  report["total_evaluation_time_seconds"] = info.seconds;
  report["tokens"] = {{"asked", info.stats.input_tokens},
                      {"computed", info.stats.computed_tokens},
                      {"logit_rows", info.stats.logit_rows},
                      {"seconds", info.stats.seconds}};
  if (const auto joules = info.energy.joules()) {
    report["energy"] = {{"joules", *joules}, {"co2_grams", info.energy.co2_grams()}, {"source", info.energy.source()}};
    if (info.energy.gpu_joules) report["energy"]["gpu_joules"] = *info.energy.gpu_joules;
  }
  return report;
}

void save_report(const std::string& folder, const Json& report, const std::vector<TaskRun>& runs,
                 const ResultTable& table, bool has_page) {
  base::create_folders(folder);
  for (const TaskRun& run : runs) {
    std::string lines;
    for (const EvalSample& sample : run.samples) {
      lines += sample_json(run, sample).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    }
    base::write_file_atomic(fmt::format("{}/samples_{}.jsonl", folder, run.task->name), lines);
  }
  base::write_file_atomic(folder + "/results.json", report.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  if (has_page) base::write_file_atomic(folder + "/index.html", make_page(runs, table, report));
}

std::string footer(const RunInfo& info) {
  std::string text;
  if (info.stats.computed_tokens > 0) {
    text += fmt::format("{} tokens asked, {} computed ({:.2f}x fewer by shared beginnings), {:.0f} asked/s",
                        base::format_grouped(info.stats.input_tokens), base::format_grouped(info.stats.computed_tokens),
                        double(info.stats.input_tokens) / double(info.stats.computed_tokens),
                        double(info.stats.input_tokens) / info.stats.seconds);
  }
  text += fmt::format("{}{} in all", text.empty() ? "" : "; ", base::format_duration(info.seconds));
  if (const auto joules = info.energy.joules()) {
    text +=
        fmt::format("; {:.2f} Wh, {:.2f} g CO2 by {}", *joules / 3600, info.energy.co2_grams(), info.energy.source());
  }
  return text + "\n";
}

void check_sandbox(const Task& task, bool is_allowed) { check_code_allowed(task, is_allowed); }

}  // namespace sinter::eval
