#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/verbs.h"
#include "models/open_model.h"
#include "quant/mixes.h"
#include "quant/quantize.h"
#include "tune/adapter/gguf_adapter.h"

namespace sinter::cli {
namespace {

namespace fs = std::filesystem;

struct Flags {
  std::string model, out, type, base;
  bool force = false;
};

void convert_adapter(const Flags& flags) {
  if (!flags.type.empty()) base::fail_usage("adapters are written in f32; leave --type out");
  if (flags.base.empty()) base::fail_usage("'{}' is an adapter; name its base with --base MODEL", flags.model);
  const spec::ModelSpec base = models::load_model_spec(flags.base);
  const bool is_file = tune::is_gguf_adapter(flags.model);
  SINTER_CHECK(is_file != flags.out.ends_with(".gguf"), "'{}' and '{}' are both {}", flags.model, flags.out,
               is_file ? "GGUF files" : "folders");
  if (flags.force) fs::remove_all(flags.out);
  is_file ? tune::gguf_adapter_to_folder(flags.model, base, flags.out)
          : tune::folder_to_gguf_adapter(flags.model, base, flags.out);
  std::printf("%s\n", flags.out.c_str());
}

void run_convert(const Flags& flags) {
  const bool to_gguf = flags.out.ends_with(".gguf");
  SINTER_CHECK(flags.force || !fs::exists(flags.out),
               "'{}' is there already; name another place, or say --force to replace it", flags.out);
  if (tune::is_gguf_adapter(flags.model) || tune::is_adapter_folder(flags.model)) return convert_adapter(flags);
  if (!flags.base.empty()) base::fail_usage("--base is for adapters; '{}' is none", flags.model);
  const quant::Mix* mix = quant::find_mix(flags.type);
  if (!flags.type.empty() && (!mix || mix->format != base::WeightFormat::plain)) {
    base::fail_usage("--type '{}' is none of f32, f16, bf16{}", flags.type,
                     mix ? "; `sinter quantize` writes that one" : "");
  }
  base::ProgressLine line;
  auto show = [&](const quant::Progress& p) {
    line.update(fmt::format("converting {}/{} tensors: {}", p.done, p.count, p.tensor));
  };
  if (to_gguf) {
    quant::write_gguf(flags.model, flags.out, {.type = flags.type}, show);
  } else {
    quant::write_folder(flags.model, flags.out, flags.type, show);
  }
  line.finish();
  std::printf("%s\n", flags.out.c_str());
}

}  // namespace

void add_convert(Command app) {
  auto flags = std::make_shared<Flags>();
  const Command verb = app.add_verb("convert", "turn a model folder into a GGUF file, or back");
  verb.option("MODEL", &flags->model,
              "a Hugging Face folder (plain or quantized), a .gguf file, or an adapter in either form")
      .required();
  verb.option("OUT", &flags->out, "NAME.gguf for a GGUF file, any other name for a folder").required();
  verb.option("--type", &flags->type, "f32, f16 or bf16 (default: as the model is stored; f16 of quantized weights)");
  verb.option("--base", &flags->base, "of an adapter: the model that it stands beside");
  verb.flag("--force", &flags->force, "replace what is there");
  verb.footer(
      "Examples:\n"
      "  sinter convert my-model my-model.gguf                  folder to GGUF\n"
      "  sinter convert model.q4_k_m.gguf model --type f16      GGUF to a folder that transformers loads\n"
      "  sinter convert my-lora my-lora.gguf --base my-model    an adapter, either way\n"
      "\n"
      "For smaller files see `sinter quantize`. A killed run goes on where it stopped when it is started again.");
  verb.on_run([flags] { run_convert(*flags); });
}

}  // namespace sinter::cli
