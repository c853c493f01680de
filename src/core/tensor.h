// A tensor: a row-major block of numbers on a device. Copying a Tensor copies the handle, never the data.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/shape.h"
#include "core/device.h"

namespace sinter::core {

using base::DType;
using base::Shape;

// Memory that returns to its allocator when the last tensor over it is gone.
class Storage {
 public:
  Storage(Allocator& allocator, size_t bytes)
      : allocator_(&allocator), bytes_(bytes), data_(allocator.allocate(bytes)) {}
  ~Storage() { allocator_->release(data_, bytes_); }
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  Allocator* allocator_;
  size_t bytes_;
  void* data_;
};

class Tensor {
 public:
  Tensor() = default;  // empty: "not given" in kernel arguments
  Tensor(Allocator& allocator, Shape shape, DType dtype)
      : storage_(
            std::make_shared<Storage>(allocator, static_cast<size_t>(shape.num_elements()) * base::dtype_bytes(dtype))),
        data_(storage_->data()),
        shape_(shape),
        dtype_(dtype),
        device_(allocator.device()) {}
  // A view over memory that someone else keeps alive.
  static Tensor view_of(void* data, Shape shape, DType dtype, Device device) {
    Tensor t;
    t.data_ = data;
    t.shape_ = shape;
    t.dtype_ = dtype;
    t.device_ = device;
    t.is_given_ = true;
    return t;
  }

  explicit operator bool() const { return storage_ != nullptr || is_given_; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Device device() const { return device_; }
  int64_t size(int axis) const { return shape_[axis]; }
  int64_t num_elements() const { return *this ? shape_.num_elements() : 0; }
  int64_t rows() const { return shape_.rows(); }
  size_t bytes() const { return static_cast<size_t>(num_elements()) * base::dtype_bytes(dtype_); }

  void* raw() const { return data_; }
  template <class T>
  T* data() const {
    return static_cast<T*>(data_);
  }

  // The same elements under another shape.
  Tensor reshape(Shape shape) const {
    SINTER_CHECK(shape.num_elements() == shape_.num_elements(), "[reshape] {} cannot become {}", shape_.to_string(),
                 shape.to_string());
    Tensor t = *this;
    t.shape_ = shape;
    return t;
  }
  // Rows [begin, begin + count) of the first axis, sharing memory.
  Tensor slice(int64_t begin, int64_t count) const {
    assert(begin >= 0 && begin + count <= shape_[0]);
    Tensor t = *this;
    int64_t row_elements = shape_[0] == 0 ? 0 : shape_.num_elements() / shape_[0];
    t.shape_.set(0, count);
    if (data_)
      t.data_ = static_cast<char*>(data_) + static_cast<size_t>(begin * row_elements) * base::dtype_bytes(dtype_);
    return t;
  }

 private:
  std::shared_ptr<Storage> storage_;
  void* data_ = nullptr;
  Shape shape_;
  DType dtype_ = DType::f32;
  Device device_;
  bool is_given_ = false;
};

// Copies host values to a new tensor on a device; waits until the host memory may be reused.
template <class T>
Tensor make_tensor(Allocator& allocator, Shape shape, const std::vector<T>& values) {
  assert(static_cast<int64_t>(values.size()) == shape.num_elements());
  Tensor t(allocator, shape, base::dtype_of<T>);
  DeviceRuntime& device = runtime(allocator.device());
  device.copy_to_device(t.raw(), values.data(), t.bytes(), device.stream());
  device.synchronize(device.stream());
  return t;
}

// The values on the host; waits for the stream. On the shapes device: zeros.
template <class T>
std::vector<T> to_host(const Tensor& t) {
  assert(base::dtype_of<T> == t.dtype());
  std::vector<T> values(static_cast<size_t>(t.num_elements()));
  DeviceRuntime& device = runtime(t.device());
  device.copy_to_host(values.data(), t.raw(), t.bytes(), device.stream());
  device.synchronize(device.stream());
  return values;
}
// Any floating tensor as host floats.
std::vector<float> to_host_floats(const Tensor& t);
// The same without a copy where it can be: the tensor's own memory when it is f32 on the CPU, else `scratch`.
std::span<const float> host_floats(const Tensor& t, std::vector<float>& scratch);

}  // namespace sinter::core
