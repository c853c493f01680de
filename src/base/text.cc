#include "base/text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>
#include <cmath>

namespace sinter::base {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t substituted = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row[b.size()];
}

// Character cells a UTF-8 string takes in a terminal, one per code point.
size_t display_width(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

bool looks_numeric(std::string_view cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) ||
                           (cell.size() > 1 && (cell[0] == '-' || cell[0] == '+' || cell[0] == '.') &&
                            std::isdigit(static_cast<unsigned char>(cell[1]))));
}

}  // namespace

bool is_slip(std::string_view written, std::string_view meant) {
  auto letters = [](std::string_view text) {
    std::string out;
    for (char c : text) {
      if (c != '_' && c != '-') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
    return out;
  };
  return letters(written) == letters(meant) || (meant.size() >= 5 && edit_distance(written, meant) <= 1);
}

namespace {

// "--vocab" is "--vocab-size" where nothing else begins so.
std::string only_one_beginning_with(std::string_view name, const std::vector<std::string>& candidates) {
  std::string found;
  if (name.size() < 3 || name.find_first_not_of('-') + 3 > name.size()) return found;
  for (const std::string& candidate : candidates) {
    if (!candidate.starts_with(name)) continue;
    if (!found.empty()) return "";
    found = candidate;
  }
  return found;
}

}  // namespace

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  // A third of the name, or two letters, but never more than half: "-1" is two edits from "us".
  size_t best_distance = std::min(std::max<size_t>(2, name.size() / 3), name.size() / 2) + 1;
  for (const std::string& candidate : candidates) {
    size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best.empty() ? only_one_beginning_with(name, candidates) : best;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

std::string format_count(double count) {
  static constexpr const char* kUnits[] = {"", "K", "M", "B", "T", "P", "E"};
  if (std::abs(count) >= 1e21) return fmt::format("{:.2e}", count);
  int unit = 0;
  while (std::abs(count) >= 999.5 && unit < 6) {
    count /= 1000;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:g}", count);
  return fmt::format("{:.{}f}{}", count, std::abs(count) >= 100 ? 1 : 2, kUnits[unit]);
}

std::string format_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (std::abs(bytes) >= 1024 && unit < 5) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, kUnits[unit]);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds == 0) return "0 s";
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  if (constexpr double kYear = 365.25 * 86400; seconds >= 3 * kYear)
    return fmt::format("{:.3g} years", seconds / kYear);
  int64_t s = std::llround(seconds);
  if (s < 3600) return fmt::format("{}m {:02}s", s / 60, s % 60);
  if (s < 86400) return fmt::format("{}h {:02}m", s / 3600, s % 3600 / 60);
  return fmt::format("{}d {:02}h", s / 86400, s % 86400 / 3600);
}

std::string format_grouped(int64_t number) {
  std::string digits = std::to_string(number < 0 ? -number : number);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) digits.insert(static_cast<size_t>(i), ",");
  return number < 0 ? "-" + digits : digits;
}

namespace {

using Cells = std::vector<std::string>;

// Where a word of ASCII that is longer than `width` goes on in the next line: behind a sign such as '/', else anywhere.
size_t cut_of(std::string_view word, size_t width) {
  const bool is_ascii = std::all_of(word.begin(), word.end(), [](char c) { return static_cast<signed char>(c) > 0; });
  if (word.size() <= width || !is_ascii) return word.size();
  const size_t sign = word.substr(0, width).find_last_of("/_-,.=");
  return sign == std::string_view::npos ? width : sign + 1;
}

// Words of a cell in lines of at most `width`; a longer word stays whole or is cut.
Cells wrapped(const std::string& cell, size_t width, bool cuts = true) {
  Cells lines;
  for (size_t begin = 0; begin <= cell.size();) {
    const size_t end = std::min(cell.find(' ', begin), cell.size());
    std::string word = cell.substr(begin, end - begin);
    begin = end + 1;
    bool was_cut = false;
    for (size_t cut = 0; cuts && (cut = cut_of(word, width)) < word.size(); word.erase(0, cut), was_cut = true)
      lines.push_back(word.substr(0, cut));
    if (!was_cut && !lines.empty() && display_width(lines.back()) + 1 + display_width(word) <= width) {
      lines.back() += " " + word;
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

size_t longest_line(const Cells& lines) {
  size_t longest = 0;
  for (const std::string& line : lines) longest = std::max(longest, display_width(line));
  return longest;
}

}  // namespace

// A table wider than kTableWidth has its headings wrapped, then the cells of its widest columns of words.
std::string Table::to_string(int indent) const {
  constexpr size_t kTableWidth = 120, kNarrowest = 12;
  const size_t columns = header_.size();
  std::vector<size_t> content(columns, 0), widths(columns, 0);
  std::vector<bool> right(columns, true);
  for (const auto& row : rows_) {
    for (size_t c = 0; c < columns && c < row.size(); ++c) {
      content[c] = std::max(content[c], display_width(row[c]));
      if (!row[c].empty() && row[c] != "-" && !looks_numeric(row[c])) right[c] = false;
    }
  }
  for (size_t c = 0; c < columns; ++c) widths[c] = std::max(content[c], display_width(header_[c]));
  auto excess = [&] {
    size_t all = static_cast<size_t>(indent) + 2 * (columns - 1);
    for (size_t width : widths) all += width;
    return all > kTableWidth ? all - kTableWidth : 0;
  };
  for (size_t c = 0; c < columns && excess() > 0; ++c) {
    const size_t least = longest_line(wrapped(header_[c], 1, false));
    widths[c] = std::max({content[c], least, widths[c] - std::min(widths[c], excess())});
  }
  while (excess() > 0) {
    size_t widest = columns;
    for (size_t c = 0; c < columns; ++c) {
      if (!right[c] && widths[c] > kNarrowest && (widest == columns || widths[c] > widths[widest])) widest = c;
    }
    if (widest == columns) break;
    widths[widest] -= std::min(widths[widest] - kNarrowest, excess());
    size_t needed = 0;
    for (const auto& row : rows_) {
      if (widest < row.size()) needed = std::max(needed, longest_line(wrapped(row[widest], widths[widest])));
    }
    if (needed > widths[widest]) {  // a word that is longer
      widths[widest] = needed;
      break;
    }
  }
  std::string text;
  auto print = [&](const Cells& cells) {
    std::vector<Cells> lines(columns);
    size_t height = 1;
    for (size_t c = 0; c < columns && c < cells.size(); ++c) {
      lines[c] = display_width(cells[c]) > widths[c] ? wrapped(cells[c], widths[c]) : Cells{cells[c]};
      height = std::max(height, lines[c].size());
    }
    for (size_t l = 0; l < height; ++l) {
      std::string line(static_cast<size_t>(indent), ' ');
      for (size_t c = 0; c < columns; ++c) {
        const std::string cell = l < lines[c].size() ? lines[c][l] : "";
        const std::string padding(widths[c] - std::min(widths[c], display_width(cell)), ' ');
        line += right[c] ? padding + cell : cell + padding;
        if (c + 1 < columns) line += "  ";
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
  };
  print(header_);
  Cells rule;
  for (size_t w : widths) rule.emplace_back(w, '-');
  print(rule);
  for (const auto& row : rows_) print(row);
  return text;
}

std::string text_bar(double share, int width) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  int eighths = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * width * 8));
  std::string bar;
  for (int i = 0; i < eighths / 8; ++i) bar += "█";
  bar += kEighths[eighths % 8];
  int used = eighths / 8 + (eighths % 8 != 0);
  return bar + std::string(static_cast<size_t>(width - used), ' ');
}

std::string text_plot(const std::vector<double>& values, int width, int height, std::string_view label) {
  if (values.empty()) return "";
  auto columns = std::min<size_t>(static_cast<size_t>(width), values.size());
  std::vector<double> shown(columns);
  for (size_t c = 0; c < columns; ++c) {  // the mean of the values that fall into the column
    size_t begin = c * values.size() / columns, end = std::max(begin + 1, (c + 1) * values.size() / columns);
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += values[i];
    shown[c] = sum / static_cast<double>(end - begin);
  }
  double low = *std::min_element(shown.begin(), shown.end()), high = *std::max_element(shown.begin(), shown.end());
  double span = high > low ? high - low : 1;
  std::string text = fmt::format("{}\n", label);
  for (int line = height - 1; line >= 0; --line) {
    double level = low + span * line / std::max(1, height - 1);
    text += fmt::format("{:>9.3f} |", level);
    for (double v : shown) {
      int cell = static_cast<int>(std::lround((v - low) / span * (height - 1)));
      text += cell == line ? "*" : " ";
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text + std::string(10, ' ') + "+" + std::string(columns, '-') + fmt::format(" {}\n", values.size());
}

}  // namespace sinter::base
