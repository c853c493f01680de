#include "tune/adapter/merge.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/verbs.h"
#include "models/open_model.h"
#include "tune/adapter/merge_check.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::string adapter, out, base, precision = "bf16";
  bool skips_check = false;
};

void run_merge(const Flags& flags) {
  if (!tune::is_adapter_folder(flags.adapter))
    base::fail("'{}' is no adapter: it has no adapter_config.json; expected a folder that PEFT or `sinter tune` wrote",
               flags.adapter);
  const core::DType dtype = models::parse_precision(flags.precision);
  const std::string base = flags.base.empty() ? tune::base_of(flags.adapter) : flags.base;
  const tune::MergeResult result = tune::merge_adapter(base, flags.adapter, flags.out, {dtype});
  std::printf("%s tensors, %s of them with the adapter; model in %s\n", base::format_grouped(result.tensors).c_str(),
              base::format_grouped(result.changed).c_str(), flags.out.c_str());
  if (flags.skips_check) return;
  const tune::MergeCheck check = tune::check_merge(base, flags.adapter, flags.out);
  std::printf(
      "logits of %ld tokens differ from those of the base with the adapter by %.1e of the largest; the likeliest "
      "token is the same after %ld of them\n",
      static_cast<long>(check.tokens), check.error, static_cast<long>(check.same_top));
  // What rounding weights to 16 bits can do to logits; a wrong merge is off by far more.
  const double limit = dtype == core::DType::f32 ? 1e-4 : 0.1;
  if (!(check.error <= limit))
    base::fail(
        "'{}' does not say what '{}' with '{}' says: logits differ by {:.1e} of the largest, expected {:.0e} or less",
        flags.out, base, flags.adapter, check.error, limit);
}

}  // namespace

void add_merge(Command app) {
  const Command verb = app.add_verb("merge", "add an adapter into its base: a model folder without adapter");
  auto flags = std::make_shared<Flags>();
  verb.option("ADAPTER", &flags->adapter, "folder with adapter_config.json").required();
  verb.option("OUT", &flags->out, "folder to be made").required();
  verb.option("--base", &flags->base, "model folder; the one that the adapter names where it is left out");
  verb.option("--precision", &flags->precision, "number format of the weights: fp32, bf16 or fp16").shows_default();
  verb.flag("--no-check", &flags->skips_check, "do not run both models afterwards to compare their logits");
  verb.footer(
      "One stored tensor is held at a time, so a model of any size is merged in little memory. The check of logits\n"
      "afterwards holds a whole model in f32.\n\n"
      "Examples:\n"
      "  sinter merge run/latest merged\n"
      "  sinter merge adapter merged --base models/llama --precision fp32");
  verb.on_run([flags] { run_merge(*flags); });
}

}  // namespace sinter::cli
