// IFEval's instructions: whether an answer follows each of them.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "eval/metrics/metrics.h"

namespace sinter::eval {

// nullopt where the verdict needs to know the answer's language, which this program does not tell.
std::optional<bool> follows_instruction(const std::string& id, const Value& arguments, const std::string& answer);
// Any of eight forms of the answer: with and without its first and last line, and those without "*".
std::optional<bool> follows_loosely(const std::string& id, const Value& arguments, const std::string& answer);

// Prompt and instruction level, strict and loose, of a document with instruction_id_list and kwargs. What cannot be
// told counts as not followed.
SampleMetrics ifeval_metrics(const Document& document, const std::string& answer);

// Words and marks as NLTK's word_tokenize cuts English text, sentences as its punkt model does in plain cases: by final
// marks before a capital, with a list of abbreviations.
std::vector<std::string> tokenize_words(const std::string& text);
std::vector<std::string> split_sentences(const std::string& text);

}  // namespace sinter::eval
