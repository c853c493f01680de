#include <cmath>
#include <nlohmann/json.hpp>

#include "eval/golden/golden.h"
#include "eval/metrics/metrics.h"
#include "eval/tasks/python_random.h"

namespace sinter::eval {

using Json = nlohmann::ordered_json;

namespace {

PythonRandom seeded_by(const Json& seed) {
  return PythonRandom::from_digits(seed.is_string() ? seed.get<std::string>() : seed.dump());
}

}  // namespace

std::vector<VerifyCheck> verify_sampling(const Json& file) {
  CaseCounter raw("random numbers"), draws("random draws"), shuffles("random shuffles");
  for (const Json& c : file.at("raw")) {
    PythonRandom random = seeded_by(c.at("seed"));
    for (const Json& u : c.at("getrandbits32")) raw.expect(random.next32() == u, "seed " + c["seed"].dump());
    for (const Json& x : c.at("then_random")) raw.expect(random.random() == x, "seed " + c["seed"].dump());
  }
  for (const Json& c : file.at("sample")) {
    PythonRandom random = seeded_by(c.at("seed"));
    for (const Json& call : c.at("three_calls")) {
      draws.expect(random.sample(c.at("n"), c.at("k")) == call.get<std::vector<uint32_t>>(),
                   fmt::format("{} of {}", c["k"].dump(), c["n"].dump()));
    }
  }
  for (const Json& c : file.at("shuffle")) {
    PythonRandom random = seeded_by(c.at("seed"));
    for (const Json& wanted : c.at("six_shuffles_of_0123")) {
      std::vector<int> items{0, 1, 2, 3};
      random.shuffle(items);
      shuffles.expect(items == wanted.get<std::vector<int>>(), "seed " + c["seed"].dump());
    }
  }
  double worst = 0;
  for (const Json& c : file.at("bootstrap")) {
    const auto xs = c.at("xs").get<std::vector<double>>();
    const double error = bootstrap_perplexity_error(xs, c.at("bootstrap_iters"));
    worst = std::max(worst, std::abs(error / c.at("stderr").get<double>() - 1));
  }
  for (const auto& [key, c] : file.items()) {
    if (!key.starts_with("gsm8k_")) continue;
    PythonRandom random = seeded_by(c.at("seed"));
    for (const Json& row : c.at("rows")) {
      draws.expect(random.sample(c.at("pool"), static_cast<uint32_t>(row.size())) == row.get<std::vector<uint32_t>>(),
                   key);
    }
  }
  return {raw.check(), draws.check(), shuffles.check(), {"bootstrap", "relative", worst, 1e-12, ""}};
}

}  // namespace sinter::eval
