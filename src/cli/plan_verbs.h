// Subcommands of `sinter plan`, one file each; plan.cc adds them.
#pragma once

namespace CLI {
class App;
}

namespace sinter::cli {

void add_plan_check(CLI::App& plan);

}  // namespace sinter::cli
