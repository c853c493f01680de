#include "comm/ring.h"

namespace sinter::comm {

void ring_all_reduce(Communicator& comm, const core::Tensor& values) {
  const int64_t ranks = comm.size(), rank = comm.rank(), n = values.num_elements();
  if (ranks == 1) return;
  const core::Tensor flat = values.reshape({n});
  auto piece = [&](int64_t p) {
    p = (p % ranks + ranks) % ranks;
    const int64_t begin = p * n / ranks, end = (p + 1) * n / ranks;
    return flat.slice(begin, end - begin);
  };
  const int right = static_cast<int>((rank + 1) % ranks), left = static_cast<int>((rank + ranks - 1) % ranks);
  const core::Tensor arrived(core::runtime({}).allocator(), {n / ranks + 1}, core::DType::f32);
  // Step s: piece rank - s goes to the right, piece rank - s - 1 comes from the left and is added to.
  for (int64_t s = 0; s < ranks - 1; ++s) {
    const core::Tensor own = piece(rank - s - 1), from_left = arrived.slice(0, own.num_elements());
    Handle sent = comm.start_send(piece(rank - s), right);
    comm.receive(from_left, left);
    for (int64_t i = 0; i < own.num_elements(); ++i) own.data<float>()[i] += from_left.data<float>()[i];
    sent->wait();
  }
  // Rank r now holds the whole sum of piece r + 1: the sums go round once.
  for (int64_t s = 0; s < ranks - 1; ++s) {
    Handle sent = comm.start_send(piece(rank + 1 - s), right);
    comm.receive(piece(rank - s), left);
    sent->wait();
  }
}

}  // namespace sinter::comm
