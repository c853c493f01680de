#include "eval/verify.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/verbs.h"
#include "data/verify/verify.h"
#include "eval/golden/golden.h"
#include "eval/quantized/golden_tensors.h"
#include "eval/quantized/quantized_golden.h"
#include "models/open_model.h"
#include "quant/verify/block_encoders.h"
#include "tune/verify/gguf_adapter.h"
#include "tune/verify/verify.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::vector<std::string> folders;
  std::string device = "cpu", precision = "fp32";
  bool as_json = false, is_quiet = false;
};

// GGUF and quantized cases, our block quantizers and GGUF adapters.
std::vector<eval::VerifyCheck> check_quantized(const std::string& folder, const std::vector<std::string>& adapters,
                                               const eval::VerifyOptions& options) {
  std::vector<eval::VerifyCheck> checks;
  if (eval::is_quantized_golden(folder)) checks = eval::verify_quantized_golden(folder, options);
  for (const std::string& file : eval::find_block_files(folder)) {
    eval::attempt("block quantizers", checks, [&] {
      for (const quant::EncoderCheck& c : quant::verify_block_encoders(file))
        checks.push_back({c.name, c.kind, c.error, c.limit, ""});
    });
  }
  for (const std::string& adapter : adapters) {
    const std::string name = std::filesystem::path(adapter).filename().string();
    eval::attempt(name, checks,
                  [&] { std::ranges::move(tune::verify_gguf_adapter(adapter), std::back_inserter(checks)); });
  }
  return checks;
}

// A folder of evaluation answers, of tuning or data cases, or a model's.
std::vector<eval::VerifyCheck> check_folder(const std::string& folder, const std::vector<data::DataCase>& data_cases,
                                            const eval::VerifyOptions& options) {
  if (eval::is_eval_golden(folder)) return eval::verify_eval_golden(folder, options);
  std::vector<eval::VerifyCheck> checks;
  for (const tune::TuneCase& one : tune::find_tune_cases(folder)) {
    const std::string name = std::filesystem::path(one.folder).lexically_relative(folder).string();
    for (eval::VerifyCheck& c : tune::verify_tune_case(one, options)) {
      c.name = (name == "." ? one.kind : name) + ": " + c.name;
      checks.push_back(std::move(c));
    }
  }
  if (!checks.empty()) return checks;
  const std::vector<data::DataCase> cases = data::find_data_cases(folder);
  const std::vector<std::string> adapters = tune::find_gguf_adapters(folder);
  if (cases.empty() && (!adapters.empty() || eval::is_quantized_golden(folder)))
    return check_quantized(folder, adapters, options);
  if (cases.empty()) return eval::verify_model(folder, options);
  for (const data::DataCase& one : cases) {
    for (const data::DataCheck& c : data::verify_data_case(one, data_cases))
      checks.push_back({one.kind + ": " + c.name, c.kind, c.error, c.limit, c.note});
  }
  return checks;
}

void run_verify(const Flags& flags) {
  eval::VerifyOptions options{core::parse_device(flags.device), models::parse_precision(flags.precision)};
  nlohmann::json report = nlohmann::json::array();
  int64_t num_failed = 0, num_checks = 0, num_skipped = 0;
  std::vector<data::DataCase> data_cases;
  for (const std::string& folder : flags.folders) {
    for (data::DataCase& one : data::find_data_cases(folder)) data_cases.push_back(std::move(one));
  }
  for (const std::string& folder : flags.folders) {
    std::vector<eval::VerifyCheck> checks = check_folder(folder, data_cases, options);
    base::Table table({"check", "error", "limit", "of", ""});
    const eval::VerifyCheck* worst = nullptr;
    const auto num_skipped_before = num_skipped;
    std::string notes;
    for (const eval::VerifyCheck& c : checks) {
      ++(c.is_skipped ? num_skipped : num_checks);
      num_failed += c.fails();
      if (c.is_skipped) {
        table.add_row({c.name, "-", "-", c.kind, "skipped"});
        report.push_back({{"folder", folder}, {"check", c.name}, {"skipped", true}, {"note", c.note}});
        notes += fmt::format("  {}: skipped: {}\n", c.name, c.note);
        continue;
      }
      if (!worst || !(c.error / std::max(c.limit, 1e-30) <= worst->error / std::max(worst->limit, 1e-30))) worst = &c;
      table.add_row(
          {c.name, fmt::format("{:.2e}", c.error), fmt::format("{:.0e}", c.limit), c.kind, c.holds() ? "ok" : "FAIL"});
      report.push_back({{"folder", folder},
                        {"check", c.name},
                        {"kind", c.kind},
                        {"error", c.error},
                        {"limit", c.limit},
                        {"holds", c.holds()}});
      if (!c.note.empty()) {
        report.back()["note"] = c.note;
        notes += fmt::format("  {}: {}\n", c.name, c.note);
      }
    }
    if (flags.as_json) continue;
    if (!flags.is_quiet) std::printf("%s\n%s\n", folder.c_str(), table.to_string(2).c_str());
    if (worst) {
      std::printf("%s: %zu checks, nearest to its limit: %s %.2e of %.0e\n", folder.c_str(),
                  checks.size() - static_cast<size_t>(num_skipped - num_skipped_before), worst->name.c_str(),
                  worst->error, worst->limit);
    }
    std::printf("%s", notes.c_str());
  }
  if (flags.as_json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    const std::string skipped = num_skipped ? fmt::format(", {} skipped", num_skipped) : "";
    std::printf("%ld checks, %ld failed%s (%s, %s)\n", num_checks, num_failed, skipped.c_str(), flags.device.c_str(),
                flags.precision.c_str());
  }
  SINTER_CHECK(num_checks > 0 || num_skipped == 0, "nothing was checked: all {} cases are skipped", num_skipped);
  SINTER_CHECK(num_failed == 0, "{} of {} checks failed", num_failed, num_checks);
}

}  // namespace

void add_verify(Command app) {
  auto flags = std::make_shared<Flags>();
  const Command verb = app.add_verb("verify", "check models, evaluations, tuning and data against golden answers");
  verb.option("DIR", &flags->folders,
              "model folders with golden.safetensors; folders of evaluation, tuning, data, GGUF or quantized cases");
  verb.option("--device", &flags->device, "cpu, cuda or cuda:N").shows_default();
  verb.option("--precision", &flags->precision, "fp32, bf16 or fp16").shows_default();
  verb.flag("--json", &flags->as_json, "print the checks as JSON");
  verb.flag("--quiet", &flags->is_quiet, "one line per folder instead of one per check");
  add_verify_recipes(verb);
  add_verify_layouts(verb);
  verb.on_run([flags, verb] {
    if (verb.was_verb_named()) return;
    if (flags->folders.empty()) base::fail_usage("name the folders to check, or `sinter verify recipes` or `layouts`");
    run_verify(*flags);
  });
}

}  // namespace sinter::cli
