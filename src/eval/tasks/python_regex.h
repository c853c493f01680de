// Regular expressions as Python's `re` reads them, over UTF-8, by PCRE2: task files, filters and checkers are written
// for those. \s, \w, \d and case folding follow Unicode.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::eval {

struct RegexMatch {
  size_t begin = 0, end = 0;        // bytes of the whole match
  std::vector<std::string> groups;  // from group 1; "" where one took no part
};

class PythonRegex {
 public:
  struct Flags {
    bool ignore_case = false, multiline = false, dot_all = false;
  };
  // Throws base::Error naming the pattern and the position in it.
  explicit PythonRegex(std::string_view pattern, Flags flags);
  explicit PythonRegex(std::string_view pattern) : PythonRegex(pattern, Flags{}) {}
  ~PythonRegex();
  PythonRegex(PythonRegex&&) noexcept;
  PythonRegex& operator=(PythonRegex&&) noexcept;

  // The matches of re.finditer. Throws base::Error when the engine gives up.
  std::vector<RegexMatch> find_all(std::string_view text) const;
  // re.search and re.match (`at_start`); false without a match.
  bool search(std::string_view text, RegexMatch* match = nullptr, bool at_start = false) const;
  // re.sub; `replacement` may hold \1 ... \9 and the escapes \n and \\.
  std::string replace(std::string_view text, std::string_view replacement) const;
  // re.split without groups.
  std::vector<std::string> split(std::string_view text) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

}  // namespace sinter::eval
