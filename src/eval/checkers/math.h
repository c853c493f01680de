// Answers of mathematics: what stands in the box, and whether two answers are the same.
#pragma once
#include <optional>
#include <string>

namespace sinter::eval {

// The last \boxed{...} (or \fbox{...}, or "\boxed x" up to "$") of a text, and what stands in it.
std::optional<std::string> last_boxed(const std::string& text);
std::optional<std::string> unbox(const std::string& boxed);

// The rules of hendrycks_math: two answers are equal after fractions, roots, units and spaces are written one way.
// nullopt where the text breaks those rules (then the answers are compared as they stand).
std::optional<std::string> strip_answer(std::string text);
bool hendrycks_equal(const std::string& a, const std::string& b);
// The answer in a generated text: between the first and the last "$", or all of it.
std::string hendrycks_answer(const std::string& text);

// The rules of minerva_math: units and words removed, shorthand written out; equal as texts or as values.
std::string minerva_normalize(std::string text);
std::string minerva_answer(const std::string& text);
bool minerva_equal(const std::string& a, const std::string& b);

}  // namespace sinter::eval
