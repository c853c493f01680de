// Runs another program and waits for it: for harnesses that must survive what they test.
#pragma once
#include <string>
#include <vector>

namespace sinter::base {

struct ProcessOptions {
  std::vector<std::string> arguments;    // [0] is the program: a path, or a name found in PATH
  std::vector<std::string> environment;  // "NAME=value" beside, or instead of, this process's own
  std::string output;                    // file that gets standard output and error; "" = /dev/null
  double timeout_seconds = 0;            // 0 = none; past it the program is killed
};
struct ProcessResult {
  int status = 0;  // exit status; 128 + signal when a signal ended it
  bool timed_out = false;
};
// Throws base::Error when the program cannot be started.
ProcessResult run_process(const ProcessOptions& options);

// The file this program was started from.
std::string program_path();

}  // namespace sinter::base
