// Small text helpers: nearest names for error messages, numbers with units, aligned tables, bars.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::base {

// The candidate with the smallest edit distance, or "" when none is near enough to be a typing slip.
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);
// Whether one is the other but for its case, '-' and '_', or, where it has five letters or more, one letter.
bool is_slip(std::string_view written, std::string_view meant);
// "; did you mean 'x'?" or "" — to end an error message with.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

std::string format_count(double count);       // 124.4M, 1.50B
std::string format_bytes(double bytes);       // 1.50 GiB (powers of 1024)
std::string format_duration(double seconds);  // 12.3 ms, 4m 05s, 3d 04h
std::string format_grouped(int64_t number);   // 124,439,808

// Rows of cells printed with columns lined up: numbers to the right, words to the left, header underlined.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void add_row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string to_string(int indent = 0) const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// A bar of `width` character cells filled to `share` (0..1), in eighths of a cell.
std::string text_bar(double share, int width);

// A curve of `values` as `height` lines of `width` characters with the axis labelled: losses over steps.
std::string text_plot(const std::vector<double>& values, int width, int height, std::string_view label);

}  // namespace sinter::base
