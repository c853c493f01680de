// Scratch memory that kernels keep between calls: aligned to a cache line, in huge pages when large.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sinter::kernels::cpu {

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  ~AlignedBuffer();
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  // At least `bytes` bytes. The content is lost when the buffer grows. Throws base::Error when memory runs out.
  void* reserve(size_t bytes);
  template <class T>
  T* reserve_array(int64_t count) {
    return static_cast<T*>(reserve(static_cast<size_t>(count) * sizeof(T)));
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace sinter::kernels::cpu
