#include "plan/scaling/sweep_fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "plan/csv.h"

namespace sinter::plan {
namespace {

constexpr double kHuberDelta = 1e-3;  // as in Hoffmann et al.
constexpr int kNumFitted = 5;
using Point = std::array<double, kNumFitted>;  // log A, log B, log E, alpha, beta

struct LogRow {
  double n = 0, d = 0, loss = 0;  // natural logarithms
};

std::vector<LogRow> take_logs(const std::vector<SweepRow>& rows) {
  std::vector<LogRow> out;
  for (const SweepRow& r : rows) out.push_back({std::log(r.parameters), std::log(r.tokens), std::log(r.loss)});
  return out;
}

// log(A/N^alpha + B/D^beta + E) and its gradient, as a log-sum-exp so that it never overflows.
double predict(const Point& p, const LogRow& r, Point* gradient) {
  const double terms[3] = {p[0] - p[3] * r.n, p[1] - p[4] * r.d, p[2]};
  const double top = std::max({terms[0], terms[1], terms[2]});
  double weights[3], sum = 0;
  for (int i = 0; i < 3; ++i) sum += weights[i] = std::exp(terms[i] - top);
  if (gradient) {
    for (double& w : weights) w /= sum;
    *gradient = {weights[0], weights[1], weights[2], -weights[0] * r.n, -weights[1] * r.d};
  }
  return top + std::log(sum);
}

double huber(double residual) {
  double size = std::abs(residual);
  return size <= kHuberDelta ? 0.5 * residual * residual : kHuberDelta * (size - 0.5 * kHuberDelta);
}

double objective(const Point& p, const std::vector<LogRow>& rows) {
  double sum = 0;
  for (const LogRow& r : rows) sum += huber(predict(p, r, nullptr) - r.loss);
  return sum;
}

// Solves M x = v in place by elimination with pivots; false when M is singular.
bool solve(std::array<Point, kNumFitted>& m, Point& v) {
  for (int i = 0; i < kNumFitted; ++i) {
    int pivot = i;
    for (int k = i + 1; k < kNumFitted; ++k) {
      if (std::abs(m[k][i]) > std::abs(m[pivot][i])) pivot = k;
    }
    if (std::abs(m[pivot][i]) < 1e-300) return false;
    std::swap(m[i], m[pivot]);
    std::swap(v[i], v[pivot]);
    for (int k = i + 1; k < kNumFitted; ++k) {
      double factor = m[k][i] / m[i][i];
      for (int j = i; j < kNumFitted; ++j) m[k][j] -= factor * m[i][j];
      v[k] -= factor * v[i];
    }
  }
  for (int i = kNumFitted - 1; i >= 0; --i) {
    for (int j = i + 1; j < kNumFitted; ++j) v[i] -= m[i][j] * v[j];
    v[i] /= m[i][i];
  }
  return true;
}

// Levenberg-Marquardt on reweighted squares: each step is the Gauss-Newton step of the Huber loss.
double minimise(Point& p, const std::vector<LogRow>& rows, int max_steps) {
  double value = objective(p, rows), damping = 1e-3;
  for (int step = 0; step < max_steps; ++step) {
    std::array<Point, kNumFitted> normal{};
    Point slope{};
    for (const LogRow& r : rows) {
      Point g;
      double residual = predict(p, r, &g) - r.loss;
      double weight = std::min(1.0, kHuberDelta / std::max(std::abs(residual), 1e-300));
      for (int i = 0; i < kNumFitted; ++i) {
        slope[i] -= weight * residual * g[i];
        for (int j = 0; j < kNumFitted; ++j) normal[i][j] += weight * g[i] * g[j];
      }
    }
    bool improved = false;
    for (int attempt = 0; attempt < 12 && !improved; ++attempt) {
      std::array<Point, kNumFitted> damped = normal;
      Point move = slope;
      for (int i = 0; i < kNumFitted; ++i) damped[i][i] += damping * (normal[i][i] + 1e-12);
      if (solve(damped, move)) {
        Point next = p;
        for (int i = 0; i < kNumFitted; ++i) next[i] += move[i];
        double next_value = objective(next, rows);
        if (std::isfinite(next_value) && next_value < value) {
          const bool converged = value - next_value < 1e-12 * value;
          p = next;
          value = next_value;
          damping = std::max(damping * 0.3, 1e-12);
          if (converged) return value;
          improved = true;
          break;
        }
      }
      damping *= 4;
    }
    if (!improved) return value;
  }
  return value;
}

// For fixed exponents and floor the law is linear in A and B: least squares, kept positive.
std::optional<Point> linear_start(const std::vector<SweepRow>& rows, double alpha, double beta, double floor) {
  double nn = 0, nd = 0, dd = 0, ny = 0, dy = 0;
  for (const SweepRow& r : rows) {
    double x = std::pow(r.parameters, -alpha), z = std::pow(r.tokens, -beta), y = r.loss - floor;
    nn += x * x;
    nd += x * z;
    dd += z * z;
    ny += x * y;
    dy += z * y;
  }
  double determinant = nn * dd - nd * nd;
  if (!(determinant > 1e-14 * nn * dd)) return std::nullopt;
  double A = (ny * dd - dy * nd) / determinant, B = (dy * nn - ny * nd) / determinant;
  if (!(A > 0) || !(B > 0)) return std::nullopt;
  return Point{std::log(A), std::log(B), std::log(std::max(floor, 1e-3)), alpha, beta};
}

Interval middle_95(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  auto at = [&](double share) {
    double position = share * static_cast<double>(values.size() - 1);
    auto low = static_cast<size_t>(position);
    size_t high = std::min(low + 1, values.size() - 1);
    return values[low] + (position - static_cast<double>(low)) * (values[high] - values[low]);
  };
  return {at(0.025), at(0.975)};
}

// Rows drawn with replacement.
template <class T>
std::vector<T> resample(const std::vector<T>& rows, const base::CounterRng& rng, uint64_t& index) {
  std::vector<T> out;
  for (size_t i = 0; i < rows.size(); ++i) out.push_back(rows[rng.bits64(index++) % rows.size()]);
  return out;
}

bool all_equal(const std::vector<SweepRow>& rows, double SweepRow::*member) {
  return std::all_of(rows.begin(), rows.end(), [&](const SweepRow& r) { return r.*member == rows.front().*member; });
}

}  // namespace

ParametricFit fit_parametric(const std::vector<SweepRow>& rows, int resamples, uint64_t seed) {
  if (rows.size() < 6)
    base::fail_usage("the sweep has {} rows; a parametric fit of 5 constants needs at least 6", rows.size());
  if (all_equal(rows, &SweepRow::parameters))
    base::fail_usage("every row of the sweep has the same number of parameters; vary it to fit a law");
  if (all_equal(rows, &SweepRow::tokens))
    base::fail_usage("every row of the sweep has the same number of tokens; vary it to fit a law");
  const double least =
      std::min_element(rows.begin(), rows.end(), [](auto& a, auto& b) { return a.loss < b.loss; })->loss;
  const std::vector<LogRow> logs = take_logs(rows);
  Point best{};
  double best_value = std::numeric_limits<double>::infinity();
  for (double alpha : {0.2, 0.35, 0.5, 0.8}) {
    for (double beta : {0.2, 0.35, 0.5, 0.8}) {
      for (double share : {0.3, 0.6, 0.8, 0.95}) {
        std::optional<Point> start = linear_start(rows, alpha, beta, share * least);
        if (!start) continue;
        double value = minimise(*start, logs, 60);
        if (value < best_value) {
          best_value = value;
          best = *start;
        }
      }
    }
  }
  if (!std::isfinite(best_value))
    base::fail_usage("no law of the form E + A/N^alpha + B/D^beta falls with both size and tokens in this sweep");
  best_value = minimise(best, logs, 500);
  ParametricFit fit;
  fit.law = {"sweep",
             "fit of the given sweep",
             ScalingLaw::Kind::parametric,
             std::exp(best[2]),
             std::exp(best[0]),
             std::exp(best[1]),
             best[3],
             best[4]};
  fit.exponent = best[4] / (best[3] + best[4]);
  fit.huber_loss = best_value;
  for (const LogRow& r : logs) fit.rms_error += std::pow(predict(best, r, nullptr) - r.loss, 2);
  fit.rms_error = std::sqrt(fit.rms_error / static_cast<double>(logs.size()));
  std::vector<double> E, A, B, alpha, beta, exponent;
  base::CounterRng rng{seed, 0x73776565};
  uint64_t index = 0;
  for (int i = 0; i < resamples; ++i) {
    Point p = best;
    minimise(p, resample(logs, rng, index), 60);
    E.push_back(std::exp(p[2]));
    A.push_back(std::exp(p[0]));
    B.push_back(std::exp(p[1]));
    alpha.push_back(p[3]);
    beta.push_back(p[4]);
    exponent.push_back(p[4] / (p[3] + p[4]));
  }
  fit.E = middle_95(E);
  fit.A = middle_95(A);
  fit.B = middle_95(B);
  fit.alpha = middle_95(alpha);
  fit.beta = middle_95(beta);
  fit.exponent_interval = middle_95(exponent);
  return fit;
}

namespace {

// Least-squares parabola through (log10 N, loss); false without a minimum inside the sizes seen.
bool fit_parabola(IsoFlopCurve& curve) {
  double mean = 0, low = 1e300, high = -1e300;
  for (const SweepRow& r : curve.rows) {
    double x = std::log10(r.parameters);
    mean += x / static_cast<double>(curve.rows.size());
    low = std::min(low, x);
    high = std::max(high, x);
  }
  double s[5] = {}, t[3] = {};
  for (const SweepRow& r : curve.rows) {
    double x = std::log10(r.parameters) - mean, power = 1;
    for (int k = 0; k < 5; ++k, power *= x) {
      s[k] += power;
      if (k < 3) t[k] += power * r.loss;
    }
  }
  // Cramer's rule for c + b x + a x^2 about the mean.
  auto det3 = [](double a, double b, double c, double d, double e, double f, double g, double h, double i) {
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g);
  };
  double det = det3(s[0], s[1], s[2], s[1], s[2], s[3], s[2], s[3], s[4]);
  if (!(std::abs(det) > 1e-12)) return false;
  double c = det3(t[0], s[1], s[2], t[1], s[2], s[3], t[2], s[3], s[4]) / det;
  double b = det3(s[0], t[0], s[2], s[1], t[1], s[3], s[2], t[2], s[4]) / det;
  double a = det3(s[0], s[1], t[0], s[1], s[2], t[1], s[2], s[3], t[2]) / det;
  if (!(a > 0)) return false;
  double best = mean - b / (2 * a);
  curve.a = a;
  curve.b = b - 2 * a * mean;
  curve.c = c - b * mean + a * mean * mean;
  curve.best_parameters = std::pow(10, best);
  curve.best_tokens = curve.flops / (6 * curve.best_parameters);
  curve.best_loss = c - b * b / (4 * a);
  return best >= low && best <= high;
}

struct PowerLaw {
  double scale = 0, exponent = 0;
};
PowerLaw fit_power(const std::vector<IsoFlopCurve>& curves) {
  double n = static_cast<double>(curves.size()), sx = 0, sy = 0, sxx = 0, sxy = 0;
  for (const IsoFlopCurve& c : curves) {
    double x = std::log(c.flops), y = std::log(c.best_parameters);
    sx += x;
    sy += y;
    sxx += x * x;
    sxy += x * y;
  }
  double exponent = (n * sxy - sx * sy) / (n * sxx - sx * sx);
  return {std::exp((sy - exponent * sx) / n), exponent};
}

std::vector<IsoFlopCurve> group_by_budget(std::vector<SweepRow> rows) {
  std::sort(rows.begin(), rows.end(), [](const SweepRow& a, const SweepRow& b) { return a.flops() < b.flops(); });
  std::vector<IsoFlopCurve> groups;
  for (const SweepRow& r : rows) {
    if (groups.empty() || r.flops() > 1.1 * groups.back().rows.front().flops()) groups.emplace_back();
    groups.back().rows.push_back(r);
  }
  for (IsoFlopCurve& g : groups) {
    for (const SweepRow& r : g.rows) g.flops += r.flops() / static_cast<double>(g.rows.size());
  }
  return groups;
}

}  // namespace

Optimum IsoFlopFit::at(double flops) const {
  double n = scale * std::pow(flops, exponent);
  return {n, flops / (6 * n), flops, 0};
}

IsoFlopFit fit_isoflop(const std::vector<SweepRow>& rows, int resamples, uint64_t seed) {
  IsoFlopFit fit;
  for (IsoFlopCurve& group : group_by_budget(rows)) {
    if (group.rows.size() >= 3 && fit_parabola(group)) {
      fit.curves.push_back(std::move(group));
    } else {
      fit.left_out.push_back(group.flops);
    }
  }
  if (fit.curves.size() < 2) {
    base::fail_usage(
        "{} of the sweep's budgets have three or more sizes with the least loss among them; IsoFLOP needs two",
        fit.curves.size());
  }
  PowerLaw law = fit_power(fit.curves);
  fit.scale = law.scale;
  fit.exponent = law.exponent;
  base::CounterRng rng{seed, 0x69736f};
  uint64_t index = 0;
  std::vector<double> exponents;
  for (int i = 0; i < resamples; ++i) {
    std::vector<IsoFlopCurve> curves;
    for (const IsoFlopCurve& c : fit.curves) {
      IsoFlopCurve drawn = c;
      drawn.rows = resample(c.rows, rng, index);
      if (fit_parabola(drawn)) curves.push_back(std::move(drawn));
    }
    if (curves.size() >= 2) exponents.push_back(fit_power(curves).exponent);
  }
  fit.exponent_interval = middle_95(exponents);
  return fit;
}

std::vector<SweepRow> parse_sweep(const std::string& text, const std::string& origin) {
  const CsvTable table(text, origin);
  auto column = [&](std::initializer_list<const char*> names) -> std::string {
    for (const std::string& cell : table.header()) {
      std::string lower = cell;
      std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char ch) { return std::tolower(ch); });
      for (const char* name : names) {
        if (lower == name) return cell;
      }
    }
    return "";
  };
  const std::string n_at = column({"parameters", "params", "n", "model_size"});
  const std::string d_at = column({"tokens", "d", "training_tokens"});
  const std::string c_at = column({"flops", "c", "compute", "training_flop"});
  const std::string loss_at = column({"loss", "final_loss", "val_loss"});
  if (loss_at.empty() || !n_at.empty() + !d_at.empty() + !c_at.empty() < 2) {
    base::fail("'{}': the header must name loss and two of parameters, tokens, flops; found '{}'", origin,
               fmt::join(table.header(), ","));
  }
  std::vector<SweepRow> rows;
  for (size_t i = 0; i < table.num_rows(); ++i) {
    auto cell = [&](const std::string& at) {
      if (at.empty()) return 0.0;
      const double value = table.number(i, at);
      if (!(value > 0)) base::fail("{}: {} is {}; expected a positive number", table.place(i), at, value);
      return value;
    };
    double n = cell(n_at), d = cell(d_at), c = cell(c_at);
    if (n == 0) n = c / (6 * d);
    if (d == 0) d = c / (6 * n);
    rows.push_back({n, d, cell(loss_at)});
  }
  if (rows.empty())
    base::fail("'{}': no rows; expected a header with loss, parameters and tokens, then numbers", origin);
  return rows;
}

}  // namespace sinter::plan
