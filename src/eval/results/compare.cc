#include "eval/results/compare.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "eval/tasks/python_random.h"

namespace sinter::eval {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Samples {
  std::map<int64_t, Json> documents;
};

Samples read_samples(const fs::path& path) {
  Samples samples;
  const std::string text = base::read_file(path.string());
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    Json line = Json::parse(text.substr(begin, end - begin), nullptr, false);
    SINTER_CHECK(line.is_object() && line.contains("doc_id") && line.contains("filtered"),
                 "'{}': a line is no sample of an evaluation", path.string());
    const int64_t id = line["doc_id"];
    samples.documents[id] = std::move(line);
    begin = end + 1;
  }
  return samples;
}

Comparison compare_metric(const std::vector<std::pair<int64_t, std::pair<double, double>>>& pairs, int64_t rounds) {
  Comparison c;
  c.num_samples = pairs.size();
  const auto n = static_cast<double>(pairs.size());
  for (const auto& [id, values] : pairs) {
    c.a += values.first / n;
    c.b += values.second / n;
    if (values.second > values.first) c.gained.push_back(id);
    if (values.second < values.first) c.lost.push_back(id);
  }
  c.difference = c.b - c.a;
  PythonRandom random(1234);
  std::vector<double> draws(static_cast<size_t>(rounds));
  int64_t num_other = 0;
  for (double& draw : draws) {
    for (size_t i = 0; i < pairs.size(); ++i) {
      const auto& values = pairs[random.below(static_cast<uint32_t>(pairs.size()))].second;
      draw += (values.second - values.first) / n;
    }
    num_other += c.difference > 0 ? draw <= 0 : draw >= 0;
  }
  std::sort(draws.begin(), draws.end());
  c.low = draws[static_cast<size_t>(0.025 * static_cast<double>(rounds - 1))];
  c.high = draws[static_cast<size_t>(0.975 * static_cast<double>(rounds - 1))];
  c.p_value = std::min(1.0, 2 * static_cast<double>(num_other) / static_cast<double>(rounds));
  return c;
}

}  // namespace

std::vector<Comparison> compare_runs(const std::string& folder_a, const std::string& folder_b, int64_t rounds) {
  std::vector<Comparison> comparisons;
  for (const std::string& folder : {folder_a, folder_b}) {
    SINTER_CHECK(fs::is_directory(folder), "there is no folder '{}'; expected one that `sinter eval --output` wrote",
                 folder);
  }
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_a)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("samples_") && fs::exists(fs::path(folder_b) / name)) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    const Samples a = read_samples(fs::path(folder_a) / name), b = read_samples(fs::path(folder_b) / name);
    std::map<std::pair<std::string, std::string>, std::vector<std::pair<int64_t, std::pair<double, double>>>> values;
    for (const auto& [id, sample] : a.documents) {
      auto other = b.documents.find(id);
      if (other == b.documents.end()) continue;
      SINTER_CHECK(sample["doc"] == other->second["doc"], "'{}': document {} is another one in the two folders", name,
                   id);
      for (const auto& [filter, metrics] : sample["filtered"].items()) {
        for (const auto& [metric, value] : metrics.items()) {
          const Json& found = other->second["filtered"][filter];
          if (!value.is_number() || !found.contains(metric)) continue;
          values[{filter, metric}].push_back({id, {value.get<double>(), found[metric].get<double>()}});
        }
      }
    }
    for (const auto& [key, pairs] : values) {
      Comparison c = compare_metric(pairs, rounds);
      c.task = name.substr(8, name.size() - 8 - 6);
      c.filter = key.first;
      c.metric = key.second;
      comparisons.push_back(std::move(c));
    }
  }
  SINTER_CHECK(!comparisons.empty(), "'{}' and '{}' have no samples of the same task", folder_a, folder_b);
  return comparisons;
}

}  // namespace sinter::eval
