// Models for benchmarks whose numbers are made on the device: only their bytes matter, and that they are no zeros.
#pragma once
#include <memory>
#include <string>

#include "base/weight_format.h"
#include "models/transformer.h"

namespace sinter::bench {

// "8B" (Llama 3.1), "7B" (Llama 2), "70B" (Llama 3.1), "16x1B" (a mixture of experts) or "small".
spec::ModelSpec shape_of(const std::string& name);

// Weights of short stretches of random numbers, repeated; vectors are 1. What stands apart is left as it is.
void fill_random(models::ParameterStore& store);

struct PackedFormat {
  base::WeightFormat format = base::WeightFormat::plain;
  int64_t group = 0;  // columns of a scale that stands apart; 0: the format's own block, of fp8 a whole row
};
// Gives the blocks' matrices random codes with ordinary scales, in place of plain numbers. Returns how many elements.
int64_t use_packed(models::ParameterStore& store, const spec::ModelSpec& spec, const PackedFormat& format);
double bits_per_element(const PackedFormat& format, int64_t columns);

struct RandomModel {
  // On cuda:0 in bf16; with a packed format the matrices of the blocks have no plain numbers beside.
  explicit RandomModel(const std::string& name, const PackedFormat& format = {});
  double weight_bytes() const;        // that a decoded token reads
  double kv_bytes_per_token() const;  // in bf16
  double flops_per_token() const;     // of products, without the head

  spec::ModelSpec spec;
  std::unique_ptr<models::ParameterStore> store;
  std::unique_ptr<models::Transformer> transformer;

 private:
  double packed_bytes_ = 0;
  int64_t packed_elements_ = 0;
};

}  // namespace sinter::bench
