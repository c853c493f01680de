// The training recipe: everything `sinter train RECIPE.toml [section.key=value ...]` can be told, typed, with its
// defaults. The member initialisers below are the one place where defaults stand.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "spec/model_spec.h"
#include "spec/parallel_spec.h"

namespace sinter::spec {

// [model]: a Hugging Face folder, or an architecture written out (family and sizes).
struct ModelRecipe {
  std::string path;        // folder with config.json; "" = the keys below
  bool random = false;     // with path: take the architecture only, not the weights
  std::string family;      // gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen3_moe
  int64_t vocab_size = 0;  // 0 = the tokenizer's
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;       // 0 = heads
  int64_t head_dim = 0;       // 0 = hidden / heads
  int64_t ffn = 0;            // 0 = 4 hidden (gpt2), else 8/3 hidden rounded up to a multiple of 64
  int64_t max_positions = 0;  // 0 = data.sequence_length
  bool tied_head = true;
  double norm_eps = 1e-5;
  double rope_theta = 10000.0;
  int64_t window = 0;   // mistral: keys a query sees; 0 = all
  int64_t experts = 0;  // mixtral, qwen3_moe
  int64_t experts_per_token = 2;
  int64_t expert_ffn = 0;  // 0 = ffn
  double balance_loss = 0.01;
  double dropout = 0.0;  // embedding, residual and attention
  double init_std = 0.02;
  int64_t mtp_heads = 0;    // multi-token prediction heads
  double mtp_weight = 0.3;  // of their losses, each over all tokens of the main one, in the mean
};

struct SourceRecipe {
  std::string path;  // a token shard (.tok), text (.txt, .md, .jsonl, .json, .csv, .parquet, .gz or .zst behind it), a
                     // folder or a pattern
  double weight = 1.0;  // share of the samples, relative to the other sources
};

// How documents are laid into samples of sequence_length tokens.
enum class Packing {
  documents,  // end to end; a token sees only its own document
  stream,     // end to end; attention crosses document borders
};

struct DataRecipe {
  std::vector<SourceRecipe> sources;     // "path", ["path", ...] or [{path = "...", weight = 1.0}, ...]
  std::vector<SourceRecipe> validation;  // read in order; weights are not used
  double validation_share = 0;           // of every shard of the sources, from its end, in place of `validation`
  std::string tokenizer;                 // folder or file; "" = the model folder's
  int64_t sequence_length = 512;
  Packing packing = Packing::documents;
  bool shuffle = true;
  std::string separator = "<|endoftext|>";  // between the documents of a .txt file
  std::string text_key = "text";            // the field of a .jsonl line
  std::string cache;                        // shards made from text files; "" = checkpoint.dir/tokens
};

// Whether the passes of a step are captured as CUDA graphs and replayed.
enum class CudaGraphs {
  off,
  automatic,  // "auto": where they can be
  on,         // a run whose passes cannot be captured is refused
};

struct TrainRecipe {
  int64_t steps = 0;             // optimizer steps; 0 = from tokens
  int64_t tokens = 0;            // tokens in all; used when steps is 0
  int64_t batch_tokens = 0;      // tokens of one step over all ranks; 0 = one micro-batch a rank
  int64_t micro_batch = 8;       // sequences of one forward pass; accumulation follows from batch_tokens
  int64_t ramp_from_tokens = 0;  // batch of the first step; 0 = no ramp
  int64_t ramp_steps = 0;        // steps over which the batch grows to batch_tokens
  int64_t patience = 0;          // validations in a row without a lower loss that end the run; 0 = it goes on
  int64_t seed = 1;
  // Of the weights in use and the activations: f32, bf16, or f16 with a dynamic loss scale; sums and masters are f32.
  // "fp8" (f8e4m3 here) is bf16 with the blocks' dense linear layers in fp8.
  base::DType precision = base::DType::f32;
  double loss_scale = 65536;                 // f16: the first scale; halved when gradients overflow, doubled after
  int64_t loss_scale_interval = 2000;        // as many steps without
  base::DType gradients = base::DType::f32;  // of the matrices of the blocks: f32 or bf16
  Recompute recompute = Recompute::none;
  std::string device = "cpu";
  // The same bits when a run is resumed, on a GPU too (on the CPU always): its kernels' choices travel in the
  // checkpoint.
  bool deterministic = false;
  CudaGraphs cuda_graphs = CudaGraphs::automatic;
  int64_t threads = 0;  // 0 = SINTER_THREADS, else the CPUs allowed
};

enum class OptimizerKind { sgd, adam, adamw, muon };

struct OptimizerRecipe {
  OptimizerKind kind = OptimizerKind::adamw;  // adam: without weight decay; muon: with AdamW for the rest
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;  // on tensors of two and more axes; adam ignores it
  double momentum = 0.9;      // sgd
  double clip = 1.0;          // largest gradient norm; 0 = no clipping
  double muon_lr = 0.02;      // of the matrices of the blocks; the rest uses lr
  double muon_momentum = 0.95;
  int64_t muon_iterations = 5;            // of Newton-Schulz
  base::DType states = base::DType::f32;  // of Adam and Muon: f32, or bf16 with stochastic rounding
};

enum class ScheduleKind { constant, cosine, linear, wsd };

struct ScheduleRecipe {
  ScheduleKind kind = ScheduleKind::cosine;
  int64_t warmup = 0;        // steps of linear growth from 0
  double final_ratio = 0.1;  // last learning rate over the largest
  double decay_share = 0.2;  // wsd: share of the steps spent decaying
};

enum class GuardAction { off, skip, stop };

struct GuardRecipe {
  GuardAction on_nan = GuardAction::skip;     // loss or gradient norm not finite
  GuardAction on_outlier = GuardAction::off;  // z-score of the loss or the gradient norm above max_z
  double max_z = 6.0;
  int64_t window = 128;    // steps the mean and deviation are taken over
  int64_t max_skips = 20;  // in a row; then the run stops
};

// Number format of the Hugging Face weights in a checkpoint.
enum class ExportFormat {
  precision,  // train.precision, what the model computes with
  f32,        // the masters
};

struct CheckpointRecipe {
  std::string dir = "run";
  int64_t every = 0;       // steps; 0 = by time
  double minutes = 15;     // between checkpoints when every is 0; 0 = at the end only
  bool initial = false;    // one of step 0 too
  bool background = true;  // written while training goes on, from a copy in host memory; false: training waits
  ExportFormat exports = ExportFormat::precision;
  int64_t keep = 2;          // newest native states kept
  int64_t export_every = 0;  // on several ranks: steps between Hugging Face folders; 0 = at the end. One rank: always
  std::string resume = "auto";  // auto: newest in dir if any; never; or the path of a checkpoint
  double time_limit = 0;        // seconds; 0 = the job's own (SLURM_JOB_END_TIME) or none
  double time_margin = 120;     // seconds kept for the last checkpoint before a time limit
};

struct LogRecipe {
  int64_t every = 1;    // steps between lines of the metrics file
  std::string metrics;  // "" = checkpoint.dir/metrics.jsonl
  std::vector<std::string> sample_prompts;
  int64_t sample_every = 0;  // steps; 0 = never
  int64_t sample_tokens = 64;
  int64_t eval_every = 0;     // steps between validation losses; 0 = at the end (when there is validation data)
  int64_t eval_batches = 16;  // micro-batches of one validation, over all ranks
};

// Tasks that the model is tried on while it trains.
struct EvalRecipe {
  std::vector<std::string> tasks;  // shipped tasks or groups, or task files (docs/evaluation.md)
  int64_t every = 0;               // steps; 0 = at the end
  double limit = 0;                // documents of each task: 0 all, below 1 a share
  int64_t few_shot = -1;           // -1 = the task's
  bool allow_code = false;         // tasks that run programs the model writes, in a sandbox
  bool chat = false;               // through the model's chat template
  std::string data;                // folder of their files; "" = SINTER_EVAL_DATA, else data/eval
};

struct Recipe {
  ModelRecipe model;
  DataRecipe data;
  TrainRecipe train;
  OptimizerRecipe optimizer;
  ScheduleRecipe schedule;
  GuardRecipe guard;
  CheckpointRecipe checkpoint;
  LogRecipe log;
  EvalRecipe eval;
  ParallelSpec parallel{.shard = 0};  // its own keys only: make_layout() adds what other sections say
};

// Parses TOML text; `origin` (its path) stands in errors. `overrides` are "section.key=value" with value as in TOML
// (bare words are taken as strings) and win over the text. Throws base::Error on syntax, unknown sections and keys
// (with the nearest name), wrong types and values out of range. Relative paths are taken as written (from the current
// folder).
Recipe parse_recipe(std::string_view toml, const std::string& origin, const std::vector<std::string>& overrides = {});
Recipe load_recipe(const std::string& path, const std::vector<std::string>& overrides = {});

// The effective recipe as TOML, every key written out; parses back to the same recipe.
std::string recipe_to_toml(const Recipe& recipe);

// The architecture a recipe asks for: config.json of model.path, or the inline keys. `tokenizer_vocab` fills an absent
// vocab_size. Throws base::Error when neither gives a whole model.
ModelSpec make_model_spec(const Recipe& recipe, int64_t tokenizer_vocab);

// The whole layout of a run on this many ranks: [parallel] with its data-parallel ranks counted, and precision, batch
// and recomputation from [train] and [data]. Throws base::Error when the axes do not fit the number of ranks.
ParallelSpec make_layout(const Recipe& recipe, int64_t ranks);

}  // namespace sinter::spec
