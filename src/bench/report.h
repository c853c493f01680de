// What a benchmark hands back: a table of numbers that prints as text or as JSON.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <variant>
#include <vector>

namespace sinter::bench {

struct Column {
  std::string key;    // in JSON
  std::string label;  // in the table
  int decimals = 1;   // of numbers in the table; JSON keeps them whole
};

// A word, a number, or nothing (printed as "-", null in JSON).
using Cell = std::variant<std::monostate, std::string, double>;

struct Report {
  std::string name;   // the benchmark's, the key in JSON
  std::string title;  // what is measured, in words
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;

  std::string to_text() const;
  nlohmann::json to_json() const;  // an array of objects, one per row
};

struct Options {
  bool is_full = false;       // the long list of cases
  double case_seconds = 0.4;  // time spent on one case; the best run counts
  std::string turns;          // of `train_step`: one case, FORMATxLENGTH, a step for each line of standard input
  std::string tokenizer;      // files for the tokenizer benchmark; "": made up on the spot
  std::string text;
  bool saves_links = false;  // of `comm`: what the command line does with the report
  std::string only;          // of the GPU's: the rows whose name (a model, a kernel, a limit) contains it
  std::vector<std::string> precisions{"bf16"};  // of `gpu_train_step`: bf16, fp8
  std::vector<std::string> graphs;  // of `gpu_train_step`: CUDA graphs on, off; empty: on, and both in the small case
};

// Runs `body` again and again for about `seconds` (at least twice after a first, unmeasured run) and returns the
// shortest time in seconds.
template <class Body>
double best_seconds(double seconds, Body&& body);

// Seconds since some fixed moment.
double now_seconds();

template <class Body>
double best_seconds(double seconds, Body&& body) {
  body();
  double best = 1e300, begin = now_seconds();
  for (int i = 0; i < 2 || now_seconds() - begin < seconds; ++i) {
    double start = now_seconds();
    body();
    double taken = now_seconds() - start;
    if (taken < best) best = taken;
  }
  return best;
}

}  // namespace sinter::bench
