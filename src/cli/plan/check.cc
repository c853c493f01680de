// `sinter plan check FILE...`: published measurements against what the planner predicts for them.
#include "plan/check/check.h"

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/plan/verbs.h"

namespace sinter::cli {

void add_plan_check(Command plan) {
  struct Options {
    std::vector<std::string> files;
    std::string hardware;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  const Command check = plan.add_verb("check", "compare predictions with published measurements");
  check.footer("Examples:\n  sinter plan check points.json");
  check.option("files", &options->files, "points (JSON) or sweeps (CSV)").required().existing_file();
  check.option("--hardware", &options->hardware, "device table in TOML that adds to the built-in one");
  check.flag("--json", &options->json, "print every prediction and the summaries as JSON");
  check.on_run([options] {
    plan::HardwareTable hardware = plan::load_hardware(options->hardware);
    std::vector<plan::CheckRow> rows;
    for (const std::string& file : options->files) {
      std::vector<plan::CheckRow> more = plan::load_check_rows(file, hardware);
      rows.insert(rows.end(), more.begin(), more.end());
    }
    plan::CheckReport report = plan::check_rows(rows);
    std::string text = options->json ? plan::report_json(report).dump(2) + "\n" : plan::format_report(report);
    std::fputs(text.c_str(), stdout);
  });
}

}  // namespace sinter::cli
