// What the reference loops are written with: elements of any floating format as numbers, and rows in parallel.
#pragma once
#include "base/dtype.h"
#include "base/error.h"
#include "base/rng.h"
#include "base/threads.h"
#include "kernels/table.h"

namespace sinter::kernels::reference {

// A floating tensor (fp8 too, as stored) seen as flat numbers; set() rounds to the tensor's format. An empty tensor
// gives an empty view.
class FloatView {
 public:
  explicit FloatView(const Tensor& t) : data_(t.raw()), dtype_(t.dtype()), size_(t.num_elements()) {
    SINTER_CHECK(!t || base::is_floating(dtype_) || base::is_fp8(dtype_),
                 "[reference] a {} tensor where a floating one is expected", base::dtype_name(dtype_));
  }
  explicit operator bool() const { return data_ != nullptr; }
  int64_t size() const { return size_; }

  double operator[](int64_t i) const {
    switch (dtype_) {
      case base::DType::f32:
        return static_cast<const float*>(data_)[i];
      case base::DType::bf16:
        return static_cast<float>(static_cast<const base::bf16*>(data_)[i]);
      case base::DType::f16:
        return static_cast<float>(static_cast<const base::f16*>(data_)[i]);
      case base::DType::f8e4m3:
        return static_cast<float>(static_cast<const base::f8e4m3*>(data_)[i]);
      case base::DType::f8e5m2:
        return static_cast<float>(static_cast<const base::f8e5m2*>(data_)[i]);
      default:
        return static_cast<const double*>(data_)[i];
    }
  }
  void set(int64_t i, double value) const {
    switch (dtype_) {
      case base::DType::f32:
        static_cast<float*>(data_)[i] = static_cast<float>(value);
        return;
      case base::DType::bf16:
        static_cast<base::bf16*>(data_)[i] = base::bf16(static_cast<float>(value));
        return;
      case base::DType::f16:
        static_cast<base::f16*>(data_)[i] = base::f16(static_cast<float>(value));
        return;
      case base::DType::f8e4m3:
        static_cast<base::f8e4m3*>(data_)[i] = base::f8e4m3(static_cast<float>(value));
        return;
      case base::DType::f8e5m2:
        static_cast<base::f8e5m2*>(data_)[i] = base::f8e5m2(static_cast<float>(value));
        return;
      default:
        static_cast<double*>(data_)[i] = value;
    }
  }
  void add(int64_t i, double value) const { set(i, (*this)[i] + value); }

 private:
  void* data_;
  base::DType dtype_;
  int64_t size_;
};

// Calls body(i) for i in [0, count) on all threads: for loops whose turns do not touch each other's results.
template <class Body>
void for_each_index(int64_t count, Body&& body) {
  base::parallel_for(count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i);
  });
}

inline base::CounterRng rng_of(const RandomKey& key) { return {key.seed, key.stream}; }

}  // namespace sinter::kernels::reference
