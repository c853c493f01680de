#include "plan/scaling/fit.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/text.h"

namespace sinter::plan {
namespace {

using Point = std::vector<double>;

struct Vertex {
  Point x;
  double value;
};

Point along(const Point& from, const Point& to, double step) {
  Point x(from.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = from[i] + step * (to[i] - from[i]);
  return x;
}

// One run of the simplex until `evaluations` are spent.
Vertex run_simplex(const std::function<double(const Point&)>& f, const Vertex& start, double spread, int evaluations) {
  std::vector<Vertex> simplex{start};
  for (size_t i = 0; i < start.x.size(); ++i) {
    Point x = start.x;
    x[i] += spread;
    simplex.push_back({x, f(x)});
  }
  evaluations -= static_cast<int>(start.x.size());
  auto by_value = [](const Vertex& a, const Vertex& b) { return a.value < b.value; };
  while (evaluations > 0) {
    std::sort(simplex.begin(), simplex.end(), by_value);
    Vertex& worst = simplex.back();
    Point centre(start.x.size(), 0.0);
    for (size_t v = 0; v + 1 < simplex.size(); ++v) {
      for (size_t i = 0; i < centre.size(); ++i) centre[i] += simplex[v].x[i] / static_cast<double>(simplex.size() - 1);
    }
    auto attempt = [&](double step) {
      Point x = along(worst.x, centre, step);
      --evaluations;
      return Vertex{x, f(x)};
    };
    Vertex reflected = attempt(2.0);
    if (reflected.value < simplex.front().value) {
      Vertex expanded = attempt(3.0);
      worst = expanded.value < reflected.value ? expanded : reflected;
    } else if (reflected.value < simplex[simplex.size() - 2].value) {
      worst = reflected;
    } else if (Vertex contracted = attempt(0.5); contracted.value < worst.value) {
      worst = contracted;
    } else {
      for (size_t v = 1; v < simplex.size(); ++v) {
        simplex[v].x = along(simplex[v].x, simplex.front().x, 0.5);
        simplex[v].value = f(simplex[v].x);
        --evaluations;
      }
    }
  }
  return *std::min_element(simplex.begin(), simplex.end(), by_value);
}

using Member = double& (*)(Efficiency&);
const std::map<std::string, Member>& members() {
  static const std::map<std::string, Member> all{
      {"gemm", [](Efficiency& e) -> double& { return e.gemm; }},
      {"gemm_narrow", [](Efficiency& e) -> double& { return e.gemm_narrow; }},
      {"expert", [](Efficiency& e) -> double& { return e.expert; }},
      {"gemm_start", [](Efficiency& e) -> double& { return e.gemm_start; }},
      {"attention", [](Efficiency& e) -> double& { return e.attention; }},
      {"memory", [](Efficiency& e) -> double& { return e.memory; }},
      {"kernel", [](Efficiency& e) -> double& { return e.kernel; }},
      {"host_block", [](Efficiency& e) -> double& { return e.host_block; }},
      {"host_collective", [](Efficiency& e) -> double& { return e.host_collective; }},
      {"rank_stall", [](Efficiency& e) -> double& { return e.rank_stall; }},
      {"far_stall", [](Efficiency& e) -> double& { return e.far_stall; }},
      {"message_delay", [](Efficiency& e) -> double& { return e.message_delay; }},
      {"small_loss", [](Efficiency& e) -> double& { return e.links.small_loss; }},
      {"hidden_share", [](Efficiency& e) -> double& { return e.hidden_share; }},
      {"never_hidden", [](Efficiency& e) -> double& { return e.never_hidden; }},
      {"crowding", [](Efficiency& e) -> double& { return e.links.crowding; }},
      {"step_fixed", [](Efficiency& e) -> double& { return e.step_fixed; }},
      {"link_share", [](Efficiency& e) -> double& { return e.links.link_share; }},
      {"link_latency", [](Efficiency& e) -> double& { return e.links.link_latency; }},
      {"network_share", [](Efficiency& e) -> double& { return e.links.network_share; }},
      {"network_latency", [](Efficiency& e) -> double& { return e.links.network_latency; }}};
  return all;
}

}  // namespace

std::vector<double> minimize(const std::function<double(const Point&)>& f, Point start, double spread,
                             int max_evaluations) {
  constexpr int kRestarts = 4;
  Vertex best{start, f(start)};
  for (int restart = 0; restart < kRestarts; ++restart) {
    double sign = restart % 2 == 0 ? 1.0 : -1.0;
    Vertex found = run_simplex(f, best, sign * spread, max_evaluations / kRestarts);
    if (found.value < best.value) best = found;
  }
  return best.x;
}

std::vector<std::string> efficiency_names() {
  std::vector<std::string> names;
  for (const auto& [name, member] : members()) names.push_back(name);
  return names;
}

double& efficiency_constant(Efficiency& efficiency, const std::string& name) {
  auto found = members().find(name);
  SINTER_CHECK(found != members().end(), "efficiency constant '{}' is not known{}", name,
               base::did_you_mean(name, efficiency_names()));
  return found->second(efficiency);
}

Efficiency fit_efficiency(const Efficiency& start, const std::vector<std::string>& names,
                          const std::vector<double>& measured,
                          const std::function<double(const Efficiency&, size_t)>& predict, int max_evaluations) {
  SINTER_CHECK(!measured.empty(), "no measurements to fit to");
  auto unpack = [&](const Point& logs) {
    Efficiency e = start;
    for (size_t i = 0; i < names.size(); ++i) efficiency_constant(e, names[i]) = std::exp(logs[i]);
    return e;
  };
  auto loss = [&](const Point& logs) {
    Efficiency e = unpack(logs);
    double sum = 0;
    for (size_t i = 0; i < measured.size(); ++i) sum += std::abs(std::log(predict(e, i) / measured[i]));
    // Shares above 1 are not physical.
    for (const char* share : {"gemm", "gemm_narrow", "expert", "attention", "memory", "link_share", "network_share",
                              "small_loss", "hidden_share", "never_hidden"}) {
      sum += 1e3 * std::max(0.0, efficiency_constant(e, share) - 1.0);
    }
    return sum / static_cast<double>(measured.size());
  };
  Point logs;
  Efficiency e = start;
  for (const std::string& name : names) logs.push_back(std::log(std::max(1e-9, efficiency_constant(e, name))));
  return unpack(minimize(loss, logs, 0.4, max_evaluations));
}

}  // namespace sinter::plan
