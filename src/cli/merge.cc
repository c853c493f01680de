#include "tune/adapter/merge.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/verbs.h"
#include "models/open_model.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::string adapter, out, base, precision = "bf16";
};

void run_merge(const Flags& flags) {
  if (!tune::is_adapter_folder(flags.adapter))
    base::fail("'{}' is no adapter: it has no adapter_config.json; expected a folder that PEFT or `sinter tune` wrote",
               flags.adapter);
  const tune::MergeResult result =
      tune::merge_adapter(flags.base, flags.adapter, flags.out, {models::parse_precision(flags.precision)});
  std::printf("%s tensors, %s of them with the adapter; model in %s\n", base::format_grouped(result.tensors).c_str(),
              base::format_grouped(result.changed).c_str(), flags.out.c_str());
}

}  // namespace

void add_merge(Command app) {
  const Command verb = app.add_verb("merge", "add an adapter into its base: a model folder without adapter");
  auto flags = std::make_shared<Flags>();
  verb.option("adapter", &flags->adapter, "folder with adapter_config.json").required();
  verb.option("out", &flags->out, "folder to be made").required();
  verb.option("--base", &flags->base, "model folder; the one that the adapter names where it is left out");
  verb.option("--precision", &flags->precision, "number format of the weights: fp32, bf16 or fp16").shows_default();
  verb.footer(
      "One stored tensor is held at a time, so a model of any size needs little memory.\n\n"
      "Examples:\n"
      "  sinter merge run/latest merged\n"
      "  sinter merge adapter merged --base models/llama --precision fp32");
  verb.on_run([flags] { run_merge(*flags); });
}

}  // namespace sinter::cli
