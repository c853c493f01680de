// Programs that a model wrote, run where they can do no harm: bubblewrap gives them a file system of their own (the
// system's libraries, read-only; a small /tmp), no network, no other processes, no home; seccomp refuses system calls
// that no such program needs; limits bound memory, time, files and output; there are threads but no further processes.
#pragma once
#include <string>

namespace sinter::eval {

struct SandboxLimits {
  double seconds = 3;
  int64_t memory_bytes = int64_t{1} << 30;
  int64_t file_bytes = int64_t{16} << 20;  // of one file, and of /tmp
  int64_t output_bytes = 1 << 16;
};

struct SandboxResult {
  bool passed = false;  // came to its end without an exception
  bool timed_out = false;
  int status = -1;     // exit status, or 128 + signal
  std::string output;  // standard output and error, cut to the limit
};

// "" where programs can be run here, else why not and what to install.
const std::string& sandbox_problem();

// Runs a Python program from its text. Throws base::Error where the sandbox does not work.
SandboxResult run_python(const std::string& program, const SandboxLimits& limits = {});

}  // namespace sinter::eval
