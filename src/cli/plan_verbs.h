// Subcommands of `sinter plan` about layouts and published measurements, one file each; plan.cc adds them.
#pragma once

namespace CLI {
class App;
}

namespace sinter::cli {

void add_plan_check(CLI::App& plan);
void add_plan_search(CLI::App& plan);
void add_plan_simulate(CLI::App& plan);

}  // namespace sinter::cli
