// What the training program does that the layout does not say: which activations it keeps, what it overlaps, how much
// memory it holds beside the tensors. One entry per program whose published figures the planner is checked against.
#pragma once
#include <string>
#include <vector>

namespace sinter::plan {

struct Software {
  std::string name;

  // Activations kept for the backward pass.
  bool flash_attention = true;   // no s x s matrix; else softmax, its dropout mask and its output are kept
  bool keeps_rotated = false;    // rotated queries and keys beside the plain ones
  double gated_widths = 4;       // widths a gated MLP keeps: gate, up, act(gate), product; 2 when fused
  bool keeps_gathered = false;   // sequence parallelism: inputs as gathered; false: own pieces, gathered again later
  bool keeps_head_input = true;  // final norm's input and output
  double logit_bytes = 4;        // per token and vocabulary entry alive at the loss
  double loss_chunk_bytes = 0;   // the loss walks over the tokens, this many bytes of logits at a time; 0 = all at once
  bool selective_drops_norms = false;  // `selective` makes norm and MLP activation outputs again, not attention
  double activation_scale = 1.0;       // measured over counted: copies in wider formats that the terms do not name

  // Memory beside tensors.
  double gradient_copy_bytes = 0;       // gradients of one micro-batch beside those they are summed in, per parameter
  double step_bytes_per_parameter = 0;  // temporaries of the optimizer's update, per parameter it owns
  double overhead_bytes = 1.0e9;        // context, libraries' work space
  double fragmentation = 1.0;           // reserved / allocated

  // Stages of a pipeline: equal numbers of layers, or equal work with the head counted as layers.
  bool balances_head = false;

  // Time.
  bool overlaps_data_parallel = true;     // gradient and weight traffic runs under the backward and forward pass
  bool overlaps_sharded = true;           // the same under ZeRO; false: only plain data parallelism overlaps
  bool zero_all_reduces = false;          // ZeRO-1 sums whole gradients on every rank before it gathers the weights
  bool overlaps_tensor_parallel = false;  // pieces of the collectives run under the neighbouring products
  bool overlaps_pipeline = false;
  bool overlaps_expert_parallel = false;  // half of the experts' traffic runs under other work
  bool sends_tokens_once = false;     // a token goes once to each node that has an expert for it, not once per expert
  double bucket_bytes = 0;            // gradients travel in pieces of this size without ZeRO; 0 = in one
  double gradient_wire_bytes = 0;     // of one gradient between ranks; 0 = as wide as they are summed
  bool single_rail = false;           // a collective between nodes runs over one adapter, whatever the node has
  double attention_scale = 1.0;       // speed of fused attention over FlashAttention-2 on Hopper and later
  double elementwise_scale = 1.0;     // passes over memory beside those of fused kernels
  bool freezes_weights = false;       // adapters are trained: no weight gradients, no traffic or update to speak of
  double selective_matmul_share = 0;  // of a block's forward products that `selective` computes again
};

// By one of software_names(); throws base::UsageError.
const Software& find_software(const std::string& name);
std::vector<std::string> software_names();

}  // namespace sinter::plan
