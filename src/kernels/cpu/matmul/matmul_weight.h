// A weight packed once into panels and kept in WeightView::derived, so that products with few rows only read it.
#pragma once
#include "core/weight_view.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/matmul/matmul_product.h"

namespace sinter::kernels::cpu {

class PackedWeight final : public core::DerivedWeight {
 public:
  // How the weight is read: (experts, n, k) when is_transposed, else (experts, k, n).
  struct Form {
    const MatmulKernel* kernel;
    base::DType dtype;
    int64_t experts, n, k;
    bool is_transposed;
    bool operator==(const Form&) const = default;
  };
  PackedWeight(const core::WeightView& weight, const Form& form);
  const Form& form() const { return form_; }
  PackedPanels panels(int64_t expert) const;

 private:
  Form form_;
  bool is_narrow_;
  int64_t expert_bytes_;
  AlignedBuffer buffer_;
};

// The packed form of the weight, made or renewed when `derived` is given and holds none of this version. Null when
// `derived` is null or holds another form of the same version (a weight is kept for its main use only).
// Not for two threads at once on one weight.
const PackedWeight* packed_weight(const core::WeightView& weight, const PackedWeight::Form& form);

}  // namespace sinter::kernels::cpu
