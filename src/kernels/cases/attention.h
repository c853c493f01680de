// What cases of attention share with a target's own: a batch, its shape, and a witness of which kernel took a call.
#pragma once
#include "kernels/cases/case.h"

namespace sinter::kernels::cases {

struct Attention {
  std::vector<int32_t> lengths;
  int64_t heads = 1, kv_heads = 1, dim = 1, window = 0;
  float dropout = 0;
  int64_t padding = 0;
  bool equal_lengths = false;
  bool is_training = false;  // the host has a bound on the number of sequences that are not empty
  Size size = Size::small;

  int64_t width() const { return (heads + 2 * kv_heads) * dim; }
  AttentionShape shape() const;
  std::string text() const;
};

struct BatchHandles {
  int offsets, contexts, sequence_of;
  int64_t tokens, max_query, max_context;
};
BatchHandles add_batch(Case& c, const Attention& a, const std::vector<int32_t>& contexts);
RaggedBatch make_batch(const Attention& a, const BatchHandles& h, const Case::At& at);

// Called before and after the target's runs of a case; `calls`: how many of attention a run makes.
struct AttentionWitness {
  void (*begin)() = nullptr;
  void (*expect)(Case& c, DType t, const Attention& a, int64_t calls) = nullptr;
  // The same for queries over pages, the longest sequence of which has so many.
  void (*expect_pages)(Case& c, int64_t most_queries) = nullptr;
};
AttentionWitness& attention_witness();  // a target may set it

}  // namespace sinter::kernels::cases
