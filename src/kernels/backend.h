// What a backend is beside its kernels: what it chose by measuring, how strict it is, whether it traces, the memory it
// keeps between calls. Where a member is null there is nothing of the kind.
#pragma once
#include <string>
#include <vector>

#include "kernels/table.h"

namespace sinter::kernels {

// Sizes of a training pass, as far as memory kept by kernels depends on them.
struct PassSizes {
  core::DType compute = core::DType::f32;
  int64_t tokens = 0;
  int64_t window = 0;            // longest sequence
  bool packs_documents = false;  // attention stops at the borders of documents
  bool is_deterministic = false;
  int64_t hidden = 0, vocab_size = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
};

// How little may be measured (kernels/choices.h).
enum class MeasuringLimit { none, brief };

struct Backend {
  const KernelTable* kernels = nullptr;  // null: not built
  std::vector<std::string> (*choices)(core::Device device) = nullptr;
  void (*restore_choices)(core::Device device, const std::vector<std::string>& lines) = nullptr;
  void (*set_deterministic)() = nullptr;
  // `change` more of this thread's callers ask for this limit.
  void (*limit_measuring)(MeasuringLimit limit, int change) = nullptr;
  bool (*is_tracing)() = nullptr;
  size_t (*workspace_bytes)(const PassSizes& sizes) = nullptr;
};

const Backend& backend_of(core::DeviceKind kind);

// Whether choices may be those of an earlier run: neither deterministic nor batch-invariant mode is on.
bool may_keep_choices();

// What kernels keep between the calls of a training pass: an estimate; 0 where they keep nothing to speak of.
size_t workspace_bytes(core::Device device, const PassSizes& sizes);

// Implemented in kernels/cuda, or as absent in kernels/cuda_absent.cc.
const Backend& cuda_backend();

}  // namespace sinter::kernels
