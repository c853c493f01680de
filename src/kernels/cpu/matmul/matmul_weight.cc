#include "kernels/cpu/matmul/matmul_weight.h"

#include <algorithm>

#include "base/threads.h"

namespace sinter::kernels::cpu {
namespace {

// The elements of one panel as [k][column], zero past the last column.
template <class Element>
void copy_narrow_panel(const Element* source, int64_t stride, bool k_is_contiguous, int64_t columns, int64_t width,
                       int64_t k, Element* panel) {
  constexpr int64_t kBlock = 32;  // of K: the block's part of the panel stays in the L1 cache while columns fill it
  for (int64_t begin = 0; begin < k; begin += kBlock) {
    int64_t end = std::min(k, begin + kBlock);
    for (int64_t j = 0; j < width; ++j) {
      for (int64_t i = begin; i < end; ++i) {
        int64_t at = k_is_contiguous ? j * stride + i : i * stride + j;
        panel[i * width + j] = j < columns ? source[at] : 0;
      }
    }
  }
}

}  // namespace

PackedWeight::PackedWeight(const core::WeightView& weight, const Form& form)
    : form_(form), is_narrow_(are_units_wider(*form.kernel, form.dtype)) {
  version = weight.version;
  const MatmulKernel& kernel = *form.kernel;
  int64_t num_panels = (form.n + kernel.columns - 1) / kernel.columns;
  int64_t units = panel_units(kernel, form.k);
  int64_t element_bytes = static_cast<int64_t>(base::dtype_bytes(form.dtype));
  int64_t panel_bytes =
      is_narrow_ ? narrow_panel_elements(kernel, form.k) * element_bytes : units * kernel.columns * kUnitBytes;
  expert_bytes_ = num_panels * panel_bytes;
  char* packed =
      static_cast<char*>(buffer_.reserve(static_cast<size_t>(std::max<int64_t>(1, form.experts * expert_bytes_))));
  int64_t stride = form.is_transposed ? form.k : form.n;
  base::parallel_for(form.experts * num_panels, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t first = i % num_panels * kernel.columns, columns = std::min<int64_t>(kernel.columns, form.n - first);
      const char* matrix =
          static_cast<const char*>(weight.data.raw()) + i / num_panels * form.n * form.k * element_bytes;
      char* panel = packed + i * panel_bytes;
      if (is_narrow_) {
        const char* source = matrix + first * (form.is_transposed ? form.k : 1) * element_bytes;
        auto copy = [&]<class Element>(Element) {
          copy_narrow_panel(reinterpret_cast<const Element*>(source), stride, form.is_transposed, columns,
                            kernel.columns, form.k, reinterpret_cast<Element*>(panel));
        };
        const int64_t used = form.k * kernel.columns * element_bytes;
        std::fill(panel + used, panel + panel_bytes, char{0});
        element_bytes == 4 ? copy(uint32_t{}) : copy(uint16_t{});
      } else {
        PackRange range{first, columns, 0, form.k, units * kernel.columns};
        kernel.pack_b({matrix, form.dtype, stride, form.is_transposed}, range, reinterpret_cast<uint32_t*>(panel));
      }
    }
  });
}

PackedPanels PackedWeight::panels(int64_t expert) const {
  return {static_cast<const char*>(buffer_.data()) + expert * expert_bytes_, is_narrow_};
}

const PackedWeight* packed_weight(const core::WeightView& weight, const PackedWeight::Form& form) {
  if (!weight.derived) return nullptr;
  auto* packed = dynamic_cast<PackedWeight*>(weight.derived->get());
  if (packed && packed->version == weight.version) {
    if (packed->form() == form) return packed;
    if (packed->form().kernel == form.kernel) return nullptr;
  }
  weight.derived->reset();  // free the old panels before making new ones
  *weight.derived = std::make_shared<PackedWeight>(weight, form);
  return static_cast<PackedWeight*>(weight.derived->get());
}

}  // namespace sinter::kernels::cpu
