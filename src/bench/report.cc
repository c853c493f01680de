#include "bench/report.h"

#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace sinter::bench {

std::string Report::to_text() const {
  std::vector<std::string> header;
  for (const Column& c : columns) header.push_back(c.label);
  base::Table table(header);
  for (const std::vector<Cell>& row : rows) {
    std::vector<std::string> cells;
    for (size_t i = 0; i < row.size(); ++i) {
      if (const auto* word = std::get_if<std::string>(&row[i])) {
        cells.push_back(*word);
      } else if (const auto* number = std::get_if<double>(&row[i])) {
        cells.push_back(fmt::format("{:.{}f}", *number, columns[i].decimals));
      } else {
        cells.push_back("-");
      }
    }
    table.add_row(std::move(cells));
  }
  return title + "\n" + table.to_string();
}

nlohmann::json Report::to_json() const {
  nlohmann::json list = nlohmann::json::array();
  for (const std::vector<Cell>& row : rows) {
    nlohmann::json object = nlohmann::json::object();
    for (size_t i = 0; i < row.size(); ++i) {
      nlohmann::json& value = object[columns[i].key];
      if (const auto* word = std::get_if<std::string>(&row[i])) value = *word;
      if (const auto* number = std::get_if<double>(&row[i])) value = *number;
    }
    list.push_back(std::move(object));
  }
  return list;
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace sinter::bench
