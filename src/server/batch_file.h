// OpenAI's batch files: a request a line in, an answer a line out, by the service that stands behind HTTP.
//
//   in:   {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
//   out:  {"id": ..., "custom_id": "a", "response": {"status_code": 200, "request_id": ..., "body": {...}}, "error":
//   null}
//
// Answers are written as they end, each line at once. A run that was cut short goes on where it stood: what the output
// file already answers is not asked again, and a last line that was not written whole is cut off.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "server/service.h"

namespace sinter::server {

struct BatchFileOptions {
  std::string input, output;
  int64_t max_under_way = 256;
  std::function<std::string()> stop_reason;  // asked now and then; not "": what is under way is cancelled
  std::function<void(int64_t done, int64_t all)> progress;  // may be empty
};

struct BatchFileResult {
  int64_t all = 0;              // requests in the input
  int64_t answered_before = 0;  // by an earlier run
  int64_t answered = 0;         // by this one, failed ones among them
  int64_t failed = 0;           // of those, answers that are errors
  std::string stop_reason;      // "": all are answered
};

// Throws base::Error naming file and line for input that is no batch, an output file that is not this batch's, or one
// that cannot be written; all before the first request but the last.
BatchFileResult run_batch_file(Service& service, const Post& post, const BatchFileOptions& options);

}  // namespace sinter::server
