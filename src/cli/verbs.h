// The verbs of the command line: one file each, one function each that adds its subcommand and callback.
#pragma once

namespace CLI {
class App;
}

namespace sinter::cli {

// Parses the command line and runs the verb. Exit status: 0 ok, 1 failed, 2 bad usage.
int run(int argc, char** argv);

void add_bench(CLI::App& app);
void add_chat(CLI::App& app);
void add_eval(CLI::App& app);
void add_generate(CLI::App& app);
void add_inspect(CLI::App& app);
void add_plan(CLI::App& app);
void add_data(CLI::App& app);
void add_tokenizer(CLI::App& app);
void add_train(CLI::App& app);
void add_verify(CLI::App& app);

}  // namespace sinter::cli
