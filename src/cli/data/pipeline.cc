#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/data/outside.h"
#include "cli/data/verbs.h"
#include "cli/generation_flags.h"
#include "data/pipeline/report.h"
#include "data/pipeline/run.h"
#include "data/source.h"

namespace sinter::cli {
namespace {

void print_summary(const data::RunSummary& s, const std::string& output, bool as_json) {
  if (as_json) {
    const nlohmann::json out{{"documents", s.documents},
                             {"bytes", s.bytes},
                             {"kept", s.kept},
                             {"kept_bytes", s.kept_bytes},
                             {"tokens", s.tokens},
                             {"bad_records", s.bad_records},
                             {"dropped", s.dropped},
                             {"parts", s.parts},
                             {"parts_done_before", s.parts_done_before},
                             {"seconds", s.seconds},
                             {"bad_reasons", s.bad_reasons}};
    std::printf("%s\n", out.dump(2).c_str());
    return;
  }
  base::Table table({"", "documents", "share"});
  auto row = [&](const std::string& name, int64_t count) {
    table.add_row({name, base::format_grouped(count),
                   fmt::format("{:.1f} %", s.documents > 0 ? 100.0 * double(count) / double(s.documents) : 0)});
  };
  row("read", s.documents);
  for (const auto& [reason, count] : s.dropped) row(reason, count);
  row("kept", s.kept);
  std::printf("%s\n", table.to_string(2).c_str());
  std::printf("%s of text kept, %s, %s (%s/aside)\n", base::format_bytes(double(s.kept_bytes)).c_str(),
              counted(s.tokens, "token").c_str(), counted(s.bad_records, "bad record").c_str(), output.c_str());
  const auto most = std::max_element(s.bad_reasons.begin(), s.bad_reasons.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != s.bad_reasons.end())
    std::printf("most bad records, %s: %s\n", base::format_grouped(most->second).c_str(), most->first.c_str());
  std::printf("%s, %ld of them done before, %s, %s of text a second; report: %s/report.json\n",
              counted(s.parts, "part").c_str(), long(s.parts_done_before), base::format_duration(s.seconds).c_str(),
              base::format_bytes(double(s.bytes) / std::max(s.seconds, 1e-9)).c_str(), output.c_str());
}

void run_run(const std::string& path, const std::vector<std::string>& overrides, bool as_json) {
  comm::Communicator& world = comm::world();
  base::set_log_rank(world.rank());
  try {
    data::PipelineRecipe recipe = data::load_pipeline(path, overrides);
    fill_from_outside(recipe);
    const data::RunSummary summary = data::run_pipeline(recipe, world);
    if (world.rank() == 0) {
      if (summary.tokens > 0)
        write_tokenizer_beside(data::shard_paths(recipe.output + "/tokens").front(), recipe.tokenizer);
      print_summary(summary, recipe.output, as_json);
    }
  } catch (const std::exception& e) {
    if (world.size() == 1) throw;
    std::fprintf(stderr, "sinter: rank %d: %s\n", world.rank(), e.what());
    comm::abort_all(1);
  }
}

void run_report(const std::string& folder, const std::string& html, bool as_json) {
  const std::string path = std::filesystem::is_directory(folder) ? folder + "/report.json" : folder;
  const nlohmann::json report = base::load_json(path);
  if (!html.empty()) {
    base::write_file_atomic(
        html, data::report_html(report, "Data report: " + std::filesystem::path(folder).filename().string()));
    std::printf("%s\n", html.c_str());
    return;
  }
  if (as_json) {
    std::printf("%s\n", report.dump(2).c_str());
    return;
  }
  data::RunSummary s;
  s.documents = report.value("documents", int64_t{0});
  s.kept = report.value("kept", int64_t{0});
  base::Table table({"", "documents", "share"});
  auto row = [&](const std::string& name, int64_t count) {
    table.add_row({name, base::format_grouped(count),
                   fmt::format("{:.1f} %", s.documents > 0 ? 100.0 * double(count) / double(s.documents) : 0)});
  };
  row("read", s.documents);
  if (report.contains("dropped") && report["dropped"].is_object()) {
    for (const auto& [reason, count] : report["dropped"].items()) row(reason, count.get<int64_t>());
  }
  row("kept", s.kept);
  std::printf("%s", table.to_string(2).c_str());
}

}  // namespace

void add_data_pipeline(Command data) {
  struct Flags {
    std::string path, html;
    std::vector<std::string> overrides;
    bool as_json = false;
  };
  auto flags = std::make_shared<Flags>();
  const Command run =
      data.add_verb("run", "a whole pipeline: raw files to filtered, deduplicated documents and token shards");
  run.option("pipeline", &flags->path, "PIPELINE.toml").required().existing_file();
  run.option("overrides", &flags->overrides, "section.key=value, wins over the file");
  run.flag("--json", &flags->as_json, "print the result as JSON");
  run.footer(
      "A run that was stopped or killed goes on where it was; 1 or 100 workers write the same bytes.\n"
      "Examples:\n"
      "  sinter data run recipes/data/web.toml run.output=out\n"
      "  mpirun -n 8 sinter data run web.toml          (ranks that share a folder)\n"
      "  SINTER_THREADS=4 sinter data run web.toml dedup.minhash=false");
  run.on_run([flags] { run_run(flags->path, flags->overrides, flags->as_json); });

  auto report_flags = std::make_shared<Flags>();
  const Command report = data.add_verb("report", "what a run kept and dropped, by stage and reason");
  report.option("folder", &report_flags->path, "output folder of a run, or its report.json").required();
  report.option("--html", &report_flags->html, "write a page with the funnel, lengths, languages and samples");
  report.flag("--json", &report_flags->as_json, "print as JSON");
  report.footer("Example:\n  sinter data report out --html report.html");
  report.on_run([report_flags] { run_report(report_flags->path, report_flags->html, report_flags->as_json); });
}

}  // namespace sinter::cli
