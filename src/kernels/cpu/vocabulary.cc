// A vocabulary shared by several ranks: plain loops that compilers turn into vectors.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"

namespace sinter::kernels::cpu {
namespace {

// Calls f with a row of logits as floats, read into `scratch` where they are not.
template <class T>
const float* as_floats(const T* row, int64_t count, std::vector<float>& scratch) {
  if constexpr (std::is_same_v<T, float>) return row;
  scratch.resize(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) scratch[static_cast<size_t>(i)] = static_cast<float>(row[i]);
  return scratch.data();
}

}  // namespace

void vocab_embedding_forward(Stream&, const VocabEmbeddingForwardArgs& args) {
  const int64_t C = args.y.size(-1), V = args.table.size(0);
  const size_t bytes = static_cast<size_t>(C) * base::dtype_bytes(args.y.dtype());
  for_each_row(args.tokens.num_elements(), C, [&](int64_t t) {
    const int64_t row = args.tokens.data<int32_t>()[t] - args.first;
    char* y = static_cast<char*>(args.y.raw()) + static_cast<size_t>(t) * bytes;
    if (row < 0 || row >= V) {
      std::memset(y, 0, bytes);
    } else {
      std::memcpy(y, static_cast<const char*>(args.table.raw()) + static_cast<size_t>(row) * bytes, bytes);
    }
  });
}

void vocab_embedding_backward(Stream&, const VocabEmbeddingBackwardArgs& args) {
  const int64_t C = args.dy.size(-1), V = args.dtable.size(0);
  with_format(args.dy.dtype(), "vocab_embedding_backward", [&]<class T>(T) {
    // Threads share the columns, so that every element adds up in the order of the tokens.
    base::parallel_for(C, 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < args.tokens.num_elements(); ++t) {
        const int64_t row = args.tokens.data<int32_t>()[t] - args.first;
        if (row < 0 || row >= V) continue;
        float* to = args.dtable.data<float>() + row * C;
        const T* from = args.dy.data<T>() + t * C;
        for (int64_t c = begin; c < end; ++c) to[c] += static_cast<float>(from[c]);
      }
    });
  });
}

void softmax_terms(Stream&, const SoftmaxTermsArgs& args) {
  const int64_t V = args.logits.size(-1);
  with_format(args.logits.dtype(), "softmax_terms", [&]<class T>(T) {
    base::parallel_for(args.logits.rows(), 4, [&](int64_t begin, int64_t end) {
      std::vector<float> scratch;
      for (int64_t r = begin; r < end; ++r) {
        const float* x = as_floats(args.logits.data<T>() + r * V, V, scratch);
        float* terms = args.terms.data<float>() + r * SoftmaxTermsArgs::kTerms;
        const int64_t target = args.targets.data<int32_t>()[r] - args.first;
        float largest = -std::numeric_limits<float>::infinity();
        for (int64_t v = 0; v < V; ++v) largest = std::max(largest, x[v]);
        double sum = 0;
        for (int64_t v = 0; v < V; ++v) sum += static_cast<double>(std::exp(x[v] - largest));
        terms[0] = largest;
        terms[1] = static_cast<float>(sum);
        terms[2] = target >= 0 && target < V ? x[target] : 0.0f;
      }
    });
  });
}

void softmax_gradient(Stream&, const SoftmaxGradientArgs& args) {
  const int64_t V = args.logits.size(-1);
  const float whole_scale = args.scale.data<float>()[0];
  const float* weights = args.weights.data<float>();
  with_format(args.logits.dtype(), "softmax_gradient", [&]<class T>(T) {
    base::parallel_for(args.logits.rows(), 4, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* x = args.logits.data<T>() + r * V;
        const int64_t target = args.targets.data<int32_t>()[r], here = target - args.first;
        const float scale = weights ? whole_scale * weights[r] : whole_scale;
        const float lse = args.lse.data<float>()[r], factor = target < 0 ? 0.0f : scale;
        const float at_target = here >= 0 && here < V ? static_cast<float>(x[here]) : 0.0f;
        for (int64_t v = 0; v < V; ++v)
          x[v] = T(factor == 0.0f ? 0.0f : std::exp(static_cast<float>(x[v]) - lse) * factor);
        if (target >= 0 && here >= 0 && here < V) x[here] = T((std::exp(at_target - lse) - 1.0f) * factor);
      }
    });
  });
}

}  // namespace sinter::kernels::cpu
