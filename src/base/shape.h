// The sizes of a tensor's axes, at most four, row-major.
#pragma once
#include <array>
#include <cassert>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace sinter::base {

class Shape {
 public:
  static constexpr int kMaxRank = 4;
  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) {
    assert(dims.size() <= kMaxRank);
    for (int64_t d : dims) dims_[rank_++] = d;
  }
  int rank() const { return rank_; }
  // Negative axes count from the end.
  int64_t operator[](int axis) const { return dims_[axis < 0 ? rank_ + axis : axis]; }
  void set(int axis, int64_t size) { dims_[axis < 0 ? rank_ + axis : axis] = size; }
  void push_back(int64_t size) {
    assert(rank_ < kMaxRank);
    dims_[rank_++] = size;
  }
  int64_t num_elements() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= dims_[i];
    return n;
  }
  // All axes but the last, multiplied: how kernels see a tensor as rows.
  int64_t rows() const { return rank_ == 0 ? 1 : (dims_[rank_ - 1] == 0 ? 0 : num_elements() / dims_[rank_ - 1]); }
  bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int i = 0; i < rank_; ++i) {
      if (dims_[i] != other.dims_[i]) return false;
    }
    return true;
  }
  // "(2, 48, 64)"
  std::string to_string() const {
    std::string text = "(";
    for (int i = 0; i < rank_; ++i) text += (i ? ", " : "") + std::to_string(dims_[i]);
    return text + ")";
  }

 private:
  std::array<int64_t, kMaxRank> dims_{};
  int rank_ = 0;
};

}  // namespace sinter::base
