#include "kernels/backend.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "kernels/batch_invariance.h"
#include "kernels/choices.h"
#include "kernels/trace.h"

namespace sinter::kernels {
namespace {

bool wants_reference() {
  const char* text = std::getenv("SINTER_KERNELS");
  if (!text || !*text) return false;
  SINTER_CHECK(std::string_view(text) == "reference", "SINTER_KERNELS is '{}'; expected 'reference' or nothing", text);
  return true;
}

// The only backend that measures.
void limit_measuring(MeasuringLimit limit, int change) {
  const Backend& backend = cuda_backend();
  if (backend.limit_measuring) backend.limit_measuring(limit, change);
}

std::atomic<bool> g_allows_integer_products{false}, g_is_strict{false};

}  // namespace

const Backend& backend_of(core::DeviceKind kind) {
  static const Backend shapes{.kernels = shapes_table()};
  static const Backend cpu{.kernels = wants_reference() ? reference_table() : cpu_table()};
  switch (kind) {
    case core::DeviceKind::shapes:
      return shapes;
    case core::DeviceKind::cpu:
      return cpu;
    case core::DeviceKind::cuda:
      break;
  }
  return cuda_backend();
}

const KernelTable* cuda_table() { return cuda_backend().kernels; }

const KernelTable& kernels_for(core::Device device) {
  const Backend& backend = backend_of(device.kind);
  SINTER_CHECK(backend.kernels, "there are no CUDA kernels in this sinter; build with `make cuda`");
  return *backend.kernels;
}

size_t workspace_bytes(core::Device device, const PassSizes& sizes) {
  const Backend& backend = backend_of(device.kind);
  return backend.workspace_bytes ? backend.workspace_bytes(sizes) : 0;
}

std::vector<std::string> kernel_choices(core::Device device) {
  const Backend& backend = backend_of(device.kind);
  return backend.choices ? backend.choices(device) : std::vector<std::string>();
}

void restore_kernel_choices(core::Device device, const std::vector<std::string>& lines) {
  const Backend& backend = backend_of(device.kind);
  if (backend.restore_choices && !lines.empty()) backend.restore_choices(device, lines);
}

bool may_keep_choices() {
  const auto is_set = [](const char* name) {
    const char* text = std::getenv(name);
    return text && *text && std::string_view(text) != "0";
  };
  return !g_is_strict && !is_set("SINTER_DETERMINISTIC") && !is_set("SINTER_BATCH_INVARIANT");
}

void set_deterministic(core::Device device) {
  g_is_strict = true;
  const Backend& backend = backend_of(device.kind);
  if (backend.set_deterministic) backend.set_deterministic();
}

void set_batch_invariant(core::Device device) {
  g_is_strict = true;
  if (device.kind == core::DeviceKind::cuda) set_cuda_batch_invariant();
}

bool is_tracing(core::Device device) {
  const Backend& backend = backend_of(device.kind);
  return backend.is_tracing && backend.is_tracing();
}

WithoutMeasuring::WithoutMeasuring() { limit_measuring(MeasuringLimit::none, 1); }
WithoutMeasuring::~WithoutMeasuring() { limit_measuring(MeasuringLimit::none, -1); }

BriefMeasuring::BriefMeasuring() { limit_measuring(MeasuringLimit::brief, 1); }
BriefMeasuring::~BriefMeasuring() { limit_measuring(MeasuringLimit::brief, -1); }

void allow_integer_products(bool allowed) { g_allows_integer_products.store(allowed, std::memory_order_relaxed); }
bool allows_integer_products() { return g_allows_integer_products.load(std::memory_order_relaxed); }

}  // namespace sinter::kernels
