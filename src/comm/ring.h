// The ring all-reduce, written from send and receive: the reference that the transports' own all-reduce is tested
// against, and the algorithm that docs/collectives.md draws.
#pragma once
#include "comm/communicator.h"

namespace sinter::comm {

// values: (n) f32 on the host, summed in place. N - 1 steps of reduce-scatter, then N - 1 of all-gather; every rank
// sends 2 (N - 1) / N of the buffer, to its right neighbour only. A piece is summed once around the ring, so the order
// of its sum depends on the piece.
void ring_all_reduce(Communicator& comm, const core::Tensor& values);

}  // namespace sinter::comm
