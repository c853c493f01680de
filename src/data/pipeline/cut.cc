#include "data/pipeline/cut.h"

#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <memory>
#include <set>

#include "base/error.h"
#include "data/formats/line_reader.h"
#include "data/pipeline/map.h"
#include "data/text/characters.h"

namespace sinter::data {
namespace {

bool parse_number(std::string_view text, double& value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  return !text.empty() && result.ec == std::errc() && result.ptr == text.data() + text.size();
}

struct Value {
  bool is_there = false, is_number = false;
  double number = 0;
  std::string text;
};

Value value_of(const simdjson::dom::object& object, const std::string& column) {
  Value v;
  simdjson::dom::element e;
  if (object[column].get(e)) return v;
  std::string_view text;
  bool truth = false;
  if (!e.get(v.number)) {
    v.is_there = v.is_number = true;
  } else if (!e.get(text)) {
    v.is_there = true;
    v.text = text;
  } else if (!e.get(truth)) {
    v.is_there = v.is_number = true;
    v.number = truth;
  }
  return v;
}

template <class T>
bool holds(const T& a, const std::string& relation, const T& b) {
  if (relation == ">=") return a >= b;
  if (relation == "<=") return a <= b;
  if (relation == ">") return a > b;
  if (relation == "<") return a < b;
  return (relation == "==") == (a == b);
}

bool holds(const Value& value, const CutCondition& condition) {
  if (!value.is_there || value.is_number != condition.is_number) return false;
  return value.is_number ? holds(value.number, condition.relation, condition.number)
                         : holds(value.text, condition.relation, condition.value);
}

// Rows of the columns' files, one after the other.
class Rows {
 public:
  explicit Rows(const CutOptions& options) : options_(options) {
    for (const std::string& path : options.columns) {
      for (FilePart& part : list_parts(path, "", UINT64_MAX)) files_.push_back(std::move(part));
    }
  }
  // The row of a document: this one still (a further copy of the document), or one behind it.
  const simdjson::dom::object* find(const std::string& id) {
    while (!has_row_ || id_ != id) {
      if (!next())
        base::fail("document '{}' has no row in '{}'; expected rows in the order of the documents, with their ids", id,
                   options_.columns[0]);
    }
    return &row_;
  }

 private:
  bool next() {
    for (std::string_view line;;) {
      if (!lines_) {
        if (file_ == files_.size()) return false;
        lines_ = std::make_unique<LineReader>(files_[file_++].path, 0, UINT64_MAX, options_.read.max_record_bytes);
      }
      const LineReader::Status status = lines_->next(line);
      if (status == LineReader::Status::end) {
        lines_.reset();
        continue;
      }
      SINTER_CHECK(status == LineReader::Status::line, "'{}': {}", files_[file_ - 1].path, lines_->problem());
      if (strip(line).empty()) continue;
      std::string_view id;
      const bool is_row = !parser_.parse(line.data(), line.size()).get(row_) && !row_["id"].get(id);
      SINTER_CHECK(is_row, "'{}' at {} is no row of columns; expected an object with an id", files_[file_ - 1].path,
                   lines_->offset());
      id_ = id;
      return has_row_ = true;
    }
  }

  const CutOptions& options_;
  std::vector<FilePart> files_;
  size_t file_ = 0;
  std::unique_ptr<LineReader> lines_;
  simdjson::dom::parser parser_;
  simdjson::dom::object row_;
  std::string id_;
  bool has_row_ = false;
};

using Visit = std::function<void(const Document&, const std::function<Value(const std::string&)>&)>;

// Every document with what finds its columns: the row beside it first, then its own fields.
void visit_with_columns(const std::vector<std::string>& inputs, const CutOptions& options, CutResult& counts,
                        const Visit& visit) {
  Rows rows(options);
  simdjson::dom::parser parser;
  auto on_document = [&](Document&& document) {
    ++counts.documents;
    const simdjson::dom::object* row = options.columns.empty() ? nullptr : rows.find(document.id);
    const std::string line = document_line(document);
    simdjson::dom::object own;
    const auto error = parser.parse(line).get(own);
    SINTER_CHECK(!error, "document '{}': {}", document.id, simdjson::error_message(error));
    visit(document, [&](const std::string& column) {
      Value value;
      if (row) value = value_of(*row, column);
      return value.is_there ? value : value_of(own, column);
    });
  };
  for (const std::string& input : inputs) {
    for (const FilePart& part : list_parts(input, "", UINT64_MAX, options.read))
      read_part(part, options.read, {on_document, [&](BadRecord&&) { ++counts.bad; }});
  }
}

const CutCondition* first_broken(const CutOptions& options, const std::function<Value(const std::string&)>& find,
                                 std::set<std::string>& missing) {
  const CutCondition* broken = nullptr;
  for (const CutCondition& condition : options.conditions) {
    const Value value = find(condition.column);
    if (value.is_there) missing.erase(condition.column);
    if (!broken && !holds(value, condition)) broken = &condition;
  }
  return broken;
}

// The least (or highest) value of each share, from a first reading.
std::vector<double> find_limits(const std::vector<std::string>& inputs, const CutOptions& options) {
  std::vector<std::vector<double>> values(options.shares.size());
  CutResult unused;
  std::set<std::string> missing;
  visit_with_columns(inputs, options, unused, [&](const Document&, const auto& find) {
    if (first_broken(options, find, missing)) return;
    for (size_t i = 0; i < options.shares.size(); ++i) {
      const Value value = find(options.shares[i].column);
      if (value.is_there && value.is_number && !std::isnan(value.number)) values[i].push_back(value.number);
    }
  });
  std::vector<double> limits;
  for (size_t i = 0; i < options.shares.size(); ++i) {
    const CutShare& share = options.shares[i];
    SINTER_CHECK(!values[i].empty(), "no document has a number in column '{}'", share.column);
    std::sort(values[i].begin(), values[i].end(), std::greater<>());
    if (share.is_lowest) std::reverse(values[i].begin(), values[i].end());
    const auto wanted = static_cast<size_t>(std::llround(share.share * static_cast<double>(values[i].size())));
    limits.push_back(wanted == 0 ? (share.is_lowest ? -INFINITY : INFINITY) : values[i][wanted - 1]);
  }
  return limits;
}

}  // namespace

CutCondition parse_condition(std::string_view text) {
  const size_t at = text.find_first_of("<>=!");
  CutCondition c;
  if (at != std::string_view::npos && at > 0) {
    const size_t length = text.substr(at + 1).starts_with('=') ? 2 : 1;
    c.column = strip(text.substr(0, at));
    c.relation = text.substr(at, length);
    c.value = strip(text.substr(at + length));
    c.is_number = parse_number(c.value, c.number);
  }
  if (c.column.empty() || c.value.empty() || c.relation == "=" || c.relation == "!")
    base::fail_usage("'{}' is no condition; expected COLUMN >= VALUE, or one of <= > < == !=", text);
  return c;
}

CutShare parse_share(std::string_view text) {
  const size_t equals = text.find('=');
  CutShare s;
  double share = -1;
  if (equals != std::string_view::npos && parse_number(strip(text.substr(equals + 1)), share)) s.share = share;
  s.column = strip(text.substr(0, equals));
  s.is_lowest = s.column.starts_with('-');
  if (s.is_lowest) s.column.erase(0, 1);
  if (s.column.empty() || !(share >= 0 && share <= 1))
    base::fail_usage(
        "'{}' is no share; expected COLUMN=SHARE from 0 to 1, as rank_score=.1, -COLUMN=SHARE for the lowest", text);
  return s;
}

CutResult cut_documents(const std::vector<std::string>& inputs, const std::string& output, const CutOptions& options) {
  CutResult result;
  std::vector<double> limits;
  if (!options.shares.empty()) limits = find_limits(inputs, options);
  std::set<std::string> missing;
  for (const CutCondition& condition : options.conditions) missing.insert(condition.column);
  LineFile file(output);
  std::string pending;
  visit_with_columns(inputs, options, result, [&](const Document& document, const auto& find) {
    if (const CutCondition* broken = first_broken(options, find, missing)) {
      ++result.dropped[fmt::format("{} {} {}", broken->column, broken->relation, broken->value)];
      return;
    }
    for (size_t i = 0; i < limits.size(); ++i) {
      const CutShare& share = options.shares[i];
      const Value value = find(share.column);
      if (value.is_number && (share.is_lowest ? value.number <= limits[i] : value.number >= limits[i])) continue;
      ++result.dropped[fmt::format("{} share of {}{}", share.share, share.is_lowest ? "lowest " : "", share.column)];
      return;
    }
    ++result.written;
    pending += document_line(document);
    pending += '\n';
    if (pending.size() > (size_t{4} << 20)) {
      file.add(pending);
      pending.clear();
    }
  });
  SINTER_CHECK(result.documents == 0 || missing.empty(), "no document has a column '{}'", *missing.begin());
  file.add(pending);
  file.commit();
  for (size_t i = 0; i < limits.size(); ++i) result.least_of_share[options.shares[i].column] = limits[i];
  return result;
}

}  // namespace sinter::data
