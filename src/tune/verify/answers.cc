#include "tune/verify/answers.h"

#include <algorithm>

namespace sinter::tune {

AnswerValues Answers::of(const Numbers& values) const {
  AnswerValues out;
  for (size_t r = 0; r < rows.size(); ++r) {
    out.emplace_back();
    for (size_t t = 0; t < lengths[r]; ++t)
      out.back().push_back(values.at(static_cast<int64_t>(r), static_cast<int64_t>(t)));
  }
  return out;
}

AnswerValues Answers::cut(const RowValues& all) const {
  AnswerValues out;
  for (size_t r = 0; r < rows.size(); ++r)
    out.emplace_back(all[r].begin() + static_cast<ptrdiff_t>(begins[r]),
                     all[r].begin() + static_cast<ptrdiff_t>(begins[r] + lengths[r]));
  return out;
}

RowValues Answers::spread(const AnswerValues& values) const {
  RowValues out;
  for (size_t r = 0; r < rows.size(); ++r) {
    out.emplace_back(rows[r].size(), 0.0);
    std::copy(values[r].begin(), values[r].end(), out.back().begin() + static_cast<ptrdiff_t>(begins[r]));
  }
  return out;
}

size_t Answers::num_tokens() const {
  size_t sum = 0;
  for (size_t n : lengths) sum += n;
  return sum;
}

std::vector<size_t> lengths_of(const Numbers& mask) {
  std::vector<size_t> lengths;
  for (int64_t r = 0; r < mask.rows(); ++r) {
    lengths.push_back(0);
    for (int64_t c = 0; c < mask.columns(); ++c) lengths.back() += mask.at(r, c) != 0;
  }
  return lengths;
}

Answers join(const Numbers& prompts, const Numbers& answers, std::vector<size_t> lengths,
             const std::function<bool(int64_t row, int64_t column)>& is_real) {
  Answers out;
  out.lengths = std::move(lengths);
  for (int64_t r = 0; r < prompts.rows(); ++r) {
    out.rows.emplace_back();
    for (int64_t c = 0; c < prompts.columns(); ++c) {
      if (is_real(r, c)) out.rows.back().push_back(static_cast<int32_t>(prompts.at(r, c)));
    }
    out.begins.push_back(out.rows.back().size());
    for (size_t t = 0; t < out.lengths[static_cast<size_t>(r)]; ++t)
      out.rows.back().push_back(static_cast<int32_t>(answers.at(r, static_cast<int64_t>(t))));
  }
  return out;
}

std::vector<double> flat(const AnswerValues& rows) {
  std::vector<double> out;
  for (const auto& row : rows) out.insert(out.end(), row.begin(), row.end());
  return out;
}

void append(Checks& checks, Checks more) {
  for (eval::VerifyCheck& c : more) checks.push_back(std::move(c));
}

}  // namespace sinter::tune
