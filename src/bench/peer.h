// Another library's matrix product, timed beside ours in the same run. Which one, if any, is chosen by file in CMake:
// peer_onednn.cc or peer_absent.cc.
#pragma once
#include <memory>
#include <string>

#include "kernels/table.h"

namespace sinter::bench {

class PeerProduct {
 public:
  virtual ~PeerProduct() = default;
  virtual void run() = 0;
};

// "oneDNN 2.6.3 (up to avx512_core_bf16)", or "" when there is no peer.
std::string peer_name();
// The same product on the same memory; null when there is no peer or it does not take this product.
std::unique_ptr<PeerProduct> make_peer_product(const kernels::MatmulArgs& args);

}  // namespace sinter::bench
