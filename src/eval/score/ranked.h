// Requests divided over ranks, each with the whole model; every rank gets all answers.
#pragma once
#include <memory>

#include "comm/communicator.h"
#include "eval/score/backend.h"

namespace sinter::eval {

// `comm` must outlive it. All ranks ask for the same requests in the same order.
std::unique_ptr<ScoringBackend> make_ranked_backend(std::unique_ptr<ScoringBackend> backend, comm::Communicator& comm);

}  // namespace sinter::eval
