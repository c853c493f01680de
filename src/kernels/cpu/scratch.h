// Memory a kernel keeps between calls: grows, never shrinks. One per thread and use (`thread_local Scratch buffer;`).
#pragma once
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace sinter::kernels::cpu {

class Scratch {
 public:
  // Room for `count` elements, aligned to 64 bytes, with undefined content. Valid until the next call.
  template <class T>
  T* get(size_t count) {
    size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    if (bytes > bytes_) {
      data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, bytes)));
      if (!data_) throw std::bad_alloc();
      bytes_ = bytes;
    }
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace sinter::kernels::cpu
