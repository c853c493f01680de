#include "train/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"

namespace sinter::train {
namespace {

using nlohmann::json;

// NaN is not JSON.
json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

// Appends the whole of it or nothing; "" or the reason why not.
std::string append_line(const std::string& path, std::string_view line) {
  // A pipe that nobody reads must not hold up the run.
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
  if (fd < 0) return fmt::format("cannot open '{}': {}", path, std::strerror(errno));
  const off_t before = ::lseek(fd, 0, SEEK_END);
  std::string error;
  while (!line.empty() && error.empty()) {
    const ssize_t n = ::write(fd, line.data(), line.size());
    if (n >= 0) {
      line.remove_prefix(static_cast<size_t>(n));
    } else if (errno != EINTR) {
      error = fmt::format("cannot write '{}': {}", path, std::strerror(errno));
    }
  }
  if (!error.empty() && before >= 0) (void)!::ftruncate(fd, before);  // so that the next line begins a line
  ::close(fd);
  return error;
}

}  // namespace

MetricsFile::MetricsFile(std::string path, int64_t resumed_step) : path_(std::move(path)) {
  // Lines are added to a pipe or a device as they come; there is nothing to keep of it.
  if (std::filesystem::exists(path_) && !std::filesystem::is_regular_file(path_)) return;
  std::string kept;
  if (resumed_step > 0 && std::filesystem::exists(path_)) {
    const std::string content = base::read_file(path_);
    for (size_t begin = 0; begin < content.size();) {
      const size_t end = content.find('\n', begin);
      if (end == std::string::npos) break;  // a line cut off by a kill
      const json line = json::parse(content.begin() + static_cast<long>(begin),
                                    content.begin() + static_cast<long>(end), nullptr, false);
      const bool has_step = line.is_object() && line.contains("step") && line["step"].is_number_integer();
      if (has_step && line["step"].get<int64_t>() <= resumed_step) {
        kept.append(content, begin, end + 1 - begin);
        if (line.contains("loss") && line["loss"].is_number()) losses_.push_back(line["loss"].get<double>());
      }
      begin = end + 1;
    }
  }
  base::write_file_atomic(path_, kept);
}

void MetricsFile::append(const StepMetrics& m) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  // In the order in which people look for them.
  nlohmann::ordered_json line{{"step", m.step},
                              {"tokens", m.tokens},
                              {"loss", number(m.loss)},
                              {"grad_norm", number(m.grad_norm)},
                              {"lr", m.lr},
                              {"seconds", m.seconds},
                              {"tokens_per_second", m.tokens_per_second},
                              {"flops_share", m.flops_share},
                              {"time", std::round(now * 1000) / 1000}};
  auto add = [&](const char* key, const std::optional<double>& value) {
    if (value) line[key] = number(*value);
  };
  add("noise_scale_tokens", m.noise_scale_tokens);
  add("balance_loss", m.balance_loss);
  add("mtp_loss", m.mtp_loss);
  add("validation_loss", m.validation_loss);
  add("loss_scale", m.loss_scale);
  for (const auto& [name, value] : m.objective) line[name] = number(value);
  for (const auto& [name, value] : m.tasks) line[name] = number(value);
  add("checkpoint_seconds", m.checkpoint_seconds);
  if (m.is_skipped) line["skipped"] = true;
  const std::string error = append_line(path_, line.dump() + "\n");
  if (!error.empty() && !is_failing_) base::log_warning("no line of metrics for step {}: {}", m.step, error);
  is_failing_ = !error.empty();
  if (std::isfinite(m.loss)) losses_.push_back(m.loss);
}

std::string number_text(double value, int places) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "infinite" : "-infinite";
  return places < 0 ? fmt::format("{}", value) : fmt::format("{:.{}f}", value, places);
}

std::string format_flops(double flops) {
  return flops >= 1e12 ? fmt::format("{:.2f} TFLOP/s", flops / 1e12) : fmt::format("{:.1f} GFLOP/s", flops / 1e9);
}

std::string progress_text(const StepMetrics& m, int64_t steps, double peak_flops, double seconds_left) {
  const std::string rate =
      m.tokens_per_second < 1000 ? fmt::format("{:.0f}", m.tokens_per_second) : base::format_count(m.tokens_per_second);
  std::string more;  // what tells most of a preference run or of rewards
  for (size_t i = 0; i < m.objective.size() && i < 2; ++i)
    more += fmt::format("{} {:.3f}  ", m.objective[i].first, m.objective[i].second);
  return fmt::format("step {}/{}  loss {}  {}{} tok/s  {:.0f}% of {}  {}", m.step, steps, number_text(m.loss), more,
                     rate, 100 * m.flops_share, format_flops(peak_flops),
                     m.step == steps ? "done" : base::format_duration(seconds_left) + " left");
}

}  // namespace sinter::train
