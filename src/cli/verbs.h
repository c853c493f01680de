// The verbs of the command line: one file each, one function each that adds it to the program.
#pragma once

namespace sinter::cli {

class Command;

// Ends the program with this status and no word: another rank speaks.
struct QuietExit {
  int status = 1;
};

// Parses the command line and runs the verb. Exit status: 0 ok, 1 failed, 2 bad usage.
int run(int argc, char** argv);

// All of them, in the order of a model's life, as --help lists them.
void add_verbs(Command app);

void add_bench(Command app);
void add_bench_model(Command bench);
void add_bench_serve(Command bench);
void add_batch(Command app);
void add_chat(Command app);
void add_eval(Command app);
void add_generate(Command app);
void add_inspect(Command app);
void add_plan(Command app);
void add_plot(Command app);
void add_quantize(Command app);
void add_serve(Command app);
void add_convert(Command app);
void add_data(Command app);
void add_tokenizer(Command app);
void add_train(Command app);
void add_tune(Command app);
void add_merge(Command app);
void add_verify(Command app);
void add_verify_layouts(Command verify);
void add_verify_recipes(Command verify);

}  // namespace sinter::cli
