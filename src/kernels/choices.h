// What kernels choose by measuring (on CUDA: the algorithm of every matrix product). Two choices differ in the last
// bits of their sums, so a run that must go on bit for bit after a restart keeps its choices with its checkpoint.
#pragma once
#include <string>
#include <vector>

#include "core/device.h"

namespace sinter::kernels {

// The choices made so far, a line each; the first names the library and the device they hold for. Empty where nothing
// is measured.
std::vector<std::string> kernel_choices(core::Device device);
// Takes up choices for calls that have not been made yet. Those of another library or device are left out with a
// warning. Throws base::Error on lines that kernel_choices did not write.
void restore_kernel_choices(core::Device device, const std::vector<std::string>& lines);

// From now on no algorithm whose result may differ between two calls with the same numbers. Before the first kernel.
void set_deterministic(core::Device device);

// From now on no row of a batch changes the result of another, by so much as a bit, in training's forward pass and in
// serving: what is served is what was trained. The CPU is always so; on CUDA it costs speed. Before the first kernel.
void set_batch_invariant(core::Device device);

// Whether the CPU may round activations to 8 bits in products with weights in blocks, which is several times as fast
// (kernels/cpu/quantized). Off until someone allows it; for the whole program.
void allow_integer_products(bool allowed);
bool allows_integer_products();
// Allows or forbids them while it lives.
class IntegerProducts {
 public:
  explicit IntegerProducts(bool allowed) : before_(allows_integer_products()) { allow_integer_products(allowed); }
  ~IntegerProducts() { allow_integer_products(before_); }
  IntegerProducts(const IntegerProducts&) = delete;
  IntegerProducts& operator=(const IntegerProducts&) = delete;

 private:
  bool before_;
};

// While one lives, this thread's calls measure nothing new: they take what was measured before, else what the library
// proposes. For work of ever new sizes, as generation is: to measure each would cost more than it brings.
class WithoutMeasuring {
 public:
  WithoutMeasuring();
  ~WithoutMeasuring();
  WithoutMeasuring(const WithoutMeasuring&) = delete;
  WithoutMeasuring& operator=(const WithoutMeasuring&) = delete;
};

// While one lives, this thread's calls measure few candidates and each for a moment.
class BriefMeasuring {
 public:
  BriefMeasuring();
  ~BriefMeasuring();
  BriefMeasuring(const BriefMeasuring&) = delete;
  BriefMeasuring& operator=(const BriefMeasuring&) = delete;
};

}  // namespace sinter::kernels
