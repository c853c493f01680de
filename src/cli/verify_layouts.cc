#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/verbs.h"
#include "comm/together.h"
#include "eval/layouts/compare.h"

namespace sinter::cli {
namespace {

struct Flags {
  uint64_t seed = 1;
  int64_t count = 25, only = -1;
  std::string keep;
  eval::LayoutDraw draw;
  bool as_json = false;
};

// Returns how many failed; every rank takes part, the first speaks.
int64_t compare_all(const Flags& flags, comm::Communicator& world) {
  const bool is_first = world.rank() == 0;
  const std::string temporary = std::filesystem::temp_directory_path() / fmt::format("sinter-layouts-{}", ::getpid());
  const std::string folder = world.broadcast_text(flags.keep.empty() ? temporary : flags.keep);
  nlohmann::json report = nlohmann::json::array();
  int64_t failed = 0, run = 0;
  std::vector<std::string> excluded;
  const int64_t first = std::max<int64_t>(flags.only, 0), end = flags.only >= 0 ? flags.only + 1 : flags.count;
  for (int64_t i = first; i < end; ++i, ++run) {
    const eval::LayoutCase c = eval::draw_layout_case(flags.seed, static_cast<uint64_t>(i), world.size(), flags.draw);
    const eval::LayoutOutcome o = eval::compare_layout(c, world, fmt::format("{}/{}", folder, i));
    failed += world.max(o.problem.empty() ? 0 : 1);
    if (!is_first) continue;
    report.push_back({{"index", i},
                      {"layout", describe(c)},
                      {"loss_error", o.loss_error},
                      {"norm_error", o.norm_error},
                      {"gradient_error", o.gradient_error},
                      {"is_exact", o.is_exact},
                      {"parameter_error", o.parameter_error},
                      {"problem", o.problem}});
    excluded.insert(excluded.end(), c.excluded.begin(), c.excluded.end());
    if (flags.as_json) continue;
    std::printf("%3ld  %s  %s\n", i, describe(c).c_str(),
                o.problem.empty()
                    ? fmt::format("ok (loss {:.1e}, gradients {}, norm {:.1e}, weights {:.1e})", o.loss_error,
                                  o.is_exact ? "bit-equal" : fmt::format("{:.1e}", o.gradient_error), o.norm_error,
                                  o.parameter_error)
                          .c_str()
                    : ("FAIL: " + o.problem).c_str());
    std::fflush(stdout);
  }
  if (!is_first) return failed;
  if (flags.as_json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    std::sort(excluded.begin(), excluded.end());
    excluded.erase(std::unique(excluded.begin(), excluded.end()), excluded.end());
    for (const std::string& line : excluded) std::printf("not drawn: %s\n", line.c_str());
    std::printf("%ld layouts on up to %d ranks against one rank, %ld failed (seed %lu)\n", run, world.size(), failed,
                flags.seed);
  }
  if (flags.keep.empty() && failed == 0) std::filesystem::remove_all(folder);
  return failed;
}

void run_layouts(const Flags& flags) {
  comm::Communicator& world = comm::world();
  if (world.size() == 1)
    base::fail_usage("layouts need several ranks: mpirun -n 8 sinter verify layouts --seed {} --count {}", flags.seed,
                     flags.count);
  base::set_log_rank(world.rank());
  base::set_log_level(base::LogLevel::error);
  const int64_t failed = compare_all(flags, world);
  if (failed > 0 && world.rank() != 0) throw QuietExit{1};
  SINTER_CHECK(failed == 0, "{} layouts failed; one alone: --only INDEX --keep DIR", failed);
}

}  // namespace

void add_verify_layouts(Command verify) {
  auto flags = std::make_shared<Flags>();
  const Command verb = verify.add_verb("layouts", "train random layouts on several ranks and compare with one rank");
  verb.option("--seed", &flags->seed, "of the draw").shows_default();
  verb.option("--count", &flags->count, "layouts to draw").at_least(1).shows_default();
  verb.option("--only", &flags->only, "this layout of the draw alone");
  verb.option("--keep", &flags->keep, "folder for the data and runs (else removed unless one fails)");
  verb.option("--axis", &flags->draw.axis,
              "draw layouts that use this: " + fmt::format("{}", fmt::join(eval::layout_axes(), ", ")))
      .one_of(eval::layout_axes());
  verb.flag("--pairs", &flags->draw.in_pairs, "save every one under a first layout and resume it under a second");
  verb.flag("--json", &flags->as_json, "print the outcomes as JSON");
  verb.footer(
      "Each case is a small model of some family, trained for five steps under a random layout (some saved under one\n"
      "layout and resumed under another) and on one rank. First weights must be the same bits; first gradients, "
      "losses,\n"
      "gradient norms and final weights must agree.\n\n"
      "Example:\n"
      "  mpirun -n 8 sinter verify layouts --seed 7 --count 25\n"
      "  mpirun -n 2 sinter verify layouts --axis cp --count 3");
  verb.on_run([flags] { run_layouts(*flags); });
}

}  // namespace sinter::cli
