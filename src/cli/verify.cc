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
#include "cli/verify_api.h"
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

using Checks = std::vector<eval::VerifyCheck>;

// Folders of evaluation answers below a root, in order; none is looked for inside another.
std::vector<std::string> find_eval_folders(const std::string& root) {
  namespace fs = std::filesystem;
  std::vector<std::string> found;
  if (!fs::is_directory(root)) return found;
  for (auto at = fs::recursive_directory_iterator(root, fs::directory_options::skip_permission_denied);
       at != fs::recursive_directory_iterator(); ++at) {
    if (!at->is_directory() || !eval::is_eval_golden(at->path().string())) continue;
    found.push_back(at->path().string());
    at.disable_recursion_pending();
  }
  std::ranges::sort(found);
  return found;
}

void add_named(Checks more, const std::string& prefix, Checks& checks) {
  for (eval::VerifyCheck& c : more) {
    c.name = prefix + ": " + c.name;
    checks.push_back(std::move(c));
  }
}

bool is_below(const std::string& path, const std::string& folder) { return path.starts_with(folder + "/"); }

// GGUF and quantized cases, our block quantizers and GGUF adapters.
Checks check_quantized(const std::string& folder, const eval::VerifyOptions& options) {
  Checks checks;
  if (eval::is_quantized_golden(folder)) checks = eval::verify_quantized_golden(folder, options);
  for (const std::string& file : eval::find_block_files(folder)) {
    eval::attempt("block quantizers", checks, [&] {
      for (const quant::EncoderCheck& c : quant::verify_block_encoders(file))
        checks.push_back({c.name, c.kind, c.error, c.limit, ""});
    });
  }
  for (const std::string& adapter : tune::find_gguf_adapters(folder)) {
    const std::string name = std::filesystem::path(adapter).filename().string();
    eval::attempt(name, checks,
                  [&] { std::ranges::move(tune::verify_gguf_adapter(adapter), std::back_inserter(checks)); });
  }
  return checks;
}

Checks check_evaluation(const std::string& folder, const eval::VerifyOptions& options) {
  Checks checks = eval::verify_eval_golden(folder, options);
  std::ranges::move(verify_api(folder, options), std::back_inserter(checks));
  return checks;
}

// A folder of evaluation answers, a model's, or a root with cases of any kind below it.
Checks check_folder(const std::string& folder, const std::vector<data::DataCase>& data_cases,
                    const eval::VerifyOptions& options) {
  if (eval::is_eval_golden(folder)) return check_evaluation(folder, options);
  Checks checks;
  auto relative = [&](const std::string& path) {
    return std::filesystem::path(path).lexically_relative(folder).string();
  };
  for (const tune::TuneCase& one : tune::find_tune_cases(folder)) {
    const std::string name = relative(one.folder);
    add_named(tune::verify_tune_case(one, options), name == "." ? one.kind : name, checks);
  }
  const std::vector<std::string> eval_folders = find_eval_folders(folder);
  for (const std::string& one : eval_folders) add_named(check_evaluation(one, options), relative(one), checks);
  for (const data::DataCase& one : data::find_data_cases(folder)) {
    if (std::ranges::any_of(eval_folders, [&](const std::string& e) { return is_below(one.folder, e); })) continue;
    for (const data::DataCheck& c : data::verify_data_case(one, data_cases))
      checks.push_back({one.kind + ": " + c.name, c.kind, c.error, c.limit, c.note});
  }
  std::ranges::move(check_quantized(folder, options), std::back_inserter(checks));
  return checks.empty() ? eval::verify_model(folder, options) : checks;
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
