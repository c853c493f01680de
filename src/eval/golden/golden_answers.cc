#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "eval/golden/golden.h"
#include "eval/metrics/filters.h"
#include "eval/metrics/metrics.h"

namespace sinter::eval {
namespace {

using Json = nlohmann::ordered_json;

// Hand-made answers through the filters of gsm8k and gsm8k_cot.
std::vector<VerifyCheck> verify_gsm8k_answers(const Json& file) {
  CaseCounter filtered("gsm8k answers filtered"), verdicts("gsm8k answers verdicts");
  for (const Json& sample : file.at("samples")) {
    const std::string target = sample.at("target");
    for (const Json& answer : sample.at("answers")) {
      for (const char* name : {"gsm8k", "gsm8k_cot"}) {
        const Task& task = shipped_tasks().tasks.at(name);
        auto document = tokenizer::jinja::make_dict();
        document->set(Value("answer"), Value(target));
        const std::string wanted = task.target.text(Value(document));
        const std::string text = cut_at_stops(answer.at("raw"), task.generation.until);
        for (const Filter& filter : task.filters) {
          const std::vector<std::string> got = apply_filter(filter, {text});
          const Json& golden = answer.at(name).at(filter.name);
          filtered.expect(got[0] == golden[0], fmt::format("{} {} of \"{}\": \"{}\"", name, filter.name, text, got[0]));
          const SampleMetrics metrics = text_metrics(task, wanted, got);
          verdicts.expect(metrics[0].value == golden[1].get<double>(),
                          fmt::format("{} {} of \"{}\"", name, filter.name, text));
        }
      }
    }
  }
  return {filtered.check(), verdicts.check()};
}

}  // namespace

std::vector<VerifyCheck> verify_answers(const std::string& name, const Json& file) {
  if (name == "gsm8k_answers") return verify_gsm8k_answers(file);
  return {};
}

}  // namespace sinter::eval
