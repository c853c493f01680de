#include <chrono>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/generation_flags.h"
#include "cli/served_model.h"
#include "cli/verbs.h"
#include "server/batch_file.h"
#include "server/task_queue.h"
#include "train/stop_request.h"

namespace sinter::cli {
namespace {

struct Flags {
  ServedModelFlags model;
  server::BatchFileOptions batch;
  int64_t max_running = 64;
};

void run_batch(Flags flags) {
  flags.model.engine.max_running = flags.max_running;
  flags.batch.max_under_way = 4 * flags.max_running;
  flags.model.engine.max_waiting = 64 * flags.batch.max_under_way;  // choices: n of each request
  OpenServedModel open(flags.model);
  server::TaskQueue tasks(2);
  const server::Post post = [&](std::function<void()> task) { tasks.post(std::move(task)); };
  server::ServiceOptions options;
  options.limits.max_seconds = 30 * 24 * 3600.0;  // in the queue, mostly
  server::Service service(open.served(), options, post);
  const train::StopRequest stop({});
  base::ProgressLine line;
  const auto start = std::chrono::steady_clock::now();
  flags.batch.stop_reason = [&] {
    return open.loop().error().empty() ? stop.reason() : "the engine has stopped: " + open.loop().error();
  };
  int64_t first_done = -1;
  flags.batch.progress = [&](int64_t done, int64_t all) {
    if (first_done < 0) first_done = done - 1;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const double left = seconds / static_cast<double>(done - first_done) * static_cast<double>(all - done);
    line.update(fmt::format(
        "{} of {} answered, {:.1f} new tokens/s, {} left", base::format_grouped(done), base::format_grouped(all),
        static_cast<double>(open.engine().stats().output_tokens) / seconds, base::format_duration(left)));
  };
  server::BatchFileResult result;
  try {
    result = server::run_batch_file(service, post, flags.batch);
  } catch (...) {
    open.loop().stop();  // before what it would post to is gone
    tasks.stop();
    throw;
  }
  line.finish();
  open.loop().stop();
  tasks.stop();
  const int64_t done = result.answered_before + result.answered;
  if (!result.stop_reason.empty())
    base::fail("{} after {} of {} answers, which are in '{}'; the same command goes on from there", result.stop_reason,
               done, result.all, flags.batch.output);
  base::log_info("{} answered{}{}", counted(result.all, "request"),
                 result.answered_before > 0
                     ? fmt::format(", {} of them before", base::format_grouped(result.answered_before))
                     : "",
                 result.failed > 0
                     ? fmt::format("; {} with an error (status_code is not 200)", base::format_grouped(result.failed))
                     : "");
}

}  // namespace

void add_batch(Command app) {
  auto flags = std::make_shared<Flags>();
  const Command verb = app.add_verb("batch", "answer a file of requests in OpenAI's batch format");
  verb.option("IN", &flags->batch.input, "JSON lines: custom_id, method, url, body").required().existing_file();
  verb.option("OUT", &flags->batch.output,
              "JSON lines: custom_id, response, error; what it answers already is left out")
      .required();
  verb.option("-m,--model", &flags->model.model, "model folder").required();
  verb.option("--max-running", &flags->max_running, "sequences that are generated at once")
      .in_range(1, 4096)
      .shows_default();
  add_served_model_options(verb, flags->model);
  verb.footer(
      "Example:\n"
      "  echo '{\"custom_id\": \"1\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {\"prompt\": "
      "\"Once\"}}' > in.jsonl\n"
      "  sinter batch in.jsonl out.jsonl --model models/stories15M\n"
      "Answers are written as they end, in any order. After an interruption the same command goes on. docs/serving.md "
      "has more.");
  verb.on_run([flags] { run_batch(*flags); });
}

}  // namespace sinter::cli
