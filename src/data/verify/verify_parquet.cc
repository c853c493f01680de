#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "data/formats/document.h"
#include "data/verify/checks.h"

namespace sinter::data {
namespace {

// Numbers that are equal as doubles are equal: 1 and 1.0.
bool is_same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number() && (a.is_number_float() || b.is_number_float()))
    return a.get<double>() == b.get<double>();
  if (a.is_array() && b.is_array()) {
    if (a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (!is_same(a[i], b[i])) return false;
    }
    return true;
  }
  if (a.is_object() && b.is_object()) {
    if (a.size() != b.size()) return false;
    for (const auto& [key, value] : a.items()) {
      if (!b.contains(key) || !is_same(value, b[key])) return false;
    }
    return true;
  }
  return a == b;
}

}  // namespace

Checks verify_parquet(const std::string& folder) {
  if (!has_parquet()) return {{"rows", "left out", 0, 0, "this program was built without Apache Arrow"}};
  Tally rows("rows"), damaged("damaged files");
  for (const Json& file : read_object(folder, "manifest.json")) {
    const auto name = file["file"].get<std::string>();
    std::vector<Json> found;
    std::string problem;
    read_parquet(folder + "/" + name, {[&](std::string&& row) { found.push_back(base::parse_json(row, name)); },
                                       [&](const std::string& what) { problem = what; }});
    if (!file.contains("rows_file")) {
      damaged.expect(file["pyarrow_error"].is_null() == problem.empty(),
                     [&] { return fmt::format("{}: {}", name, problem); });
      continue;
    }
    const std::vector<Json> want = read_rows(folder, file["rows_file"]);
    rows.expect(found.size() == want.size() && problem.empty(),
                [&] { return fmt::format("{}: {} rows of {} {}", name, found.size(), want.size(), problem); });
    for (size_t i = 0; i < std::min(found.size(), want.size()); ++i)
      rows.expect(is_same(found[i], want[i]),
                  [&] { return fmt::format("{} row {}: {}", name, i, found[i].dump().substr(0, 300)); });
  }
  return {rows.check(), damaged.check()};
}

}  // namespace sinter::data
