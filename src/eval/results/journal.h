// Answers on disk as they come: a run that was killed goes on where it ended, with the same numbers.
#pragma once
#include <memory>
#include <string>

#include "eval/score/backend.h"

namespace sinter::eval {

// Wraps a backend: what the file FOLDER/NAME has for the same model and request is not asked again, the rest is added
// to it. A last line that was cut off by a crash is dropped. One process writes a file.
std::unique_ptr<ScoringBackend> make_journal(std::unique_ptr<ScoringBackend> backend, const std::string& folder,
                                             const std::string& model, const std::string& name = "answers.jsonl");

}  // namespace sinter::eval
