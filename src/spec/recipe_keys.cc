#include "spec/recipe_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "spec/recipe.h"

namespace sinter::spec {
namespace {

using Meanings = std::map<std::string, const char*, std::less<>>;

const Meanings& meanings() {
  static const Meanings table{
      {"model.path", "a Hugging Face folder (config.json, weights) to go on from; empty = the keys below"},
      {"model.random", "with path: take the architecture only and start from random weights"},
      {"model.family", "gpt2, llama, mistral, qwen2, qwen3, mixtral or qwen3_moe"},
      {"model.vocab_size", "tokens of the vocabulary; 0 = the tokenizer's"},
      {"model.hidden", "width of the residual stream"},
      {"model.layers", "transformer blocks"},
      {"model.heads", "query heads"},
      {"model.kv_heads", "key and value heads (grouped-query attention); 0 = heads"},
      {"model.head_dim", "elements of a head; 0 = hidden / heads"},
      {"model.ffn", "width of the MLP; 0 = 4 hidden (gpt2), else 8/3 hidden rounded up to 64"},
      {"model.max_positions", "longest sequence the model can take; 0 = data.sequence_length"},
      {"model.tied_head", "the output head shares the embedding's weights"},
      {"model.norm_eps", "added to the variance in norms"},
      {"model.rope_theta", "base of the rotary embedding's angles (not gpt2)"},
      {"model.window", "mistral, mixtral: keys a query sees; 0 = all"},
      {"model.experts", "mixtral, qwen3_moe: experts of a layer"},
      {"model.experts_per_token", "experts a token is sent to"},
      {"model.expert_ffn", "width of an expert; 0 = ffn"},
      {"model.balance_loss", "weight of the load-balancing loss"},
      {"model.dropout", "on embedding, residual and attention"},
      {"model.init_std", "standard deviation of the initial weights"},
      {"model.mtp_heads", "extra heads that predict further tokens"},
      {"model.mtp_weight", "weight of the extra heads' losses"},
      {"data.sources", "training data: a path, a list of paths, or {path = \"...\", weight = 1.0} entries"},
      {"data.validation", "validation data, as sources; read in order"},
      {"data.validation_share", "validation data from the end of every shard of the sources: a share such as 0.01"},
      {"data.tokenizer", "tokenizer folder or file; empty = the model folder's"},
      {"data.sequence_length", "tokens of a sample"},
      {"data.packing", "documents: a token sees only its own document; stream: attention crosses borders"},
      {"data.shuffle", "a new order of the samples every epoch"},
      {"data.separator", "stands between the documents of a .txt file"},
      {"data.text_key", "field of a .jsonl line that holds the text"},
      {"data.cache", "folder of the shards made from text; empty = checkpoint.dir/tokens"},
      {"train.steps", "optimizer steps; 0 = from tokens"},
      {"train.tokens", "tokens in all; used when steps is 0"},
      {"train.batch_tokens", "tokens of one step over all ranks; 0 = one micro-batch a rank"},
      {"train.micro_batch", "sequences of one forward pass; accumulation follows from batch_tokens"},
      {"train.ramp_from_tokens", "batch of the first step when the batch grows; 0 = no ramp"},
      {"train.ramp_steps", "steps over which the batch grows to batch_tokens"},
      {"train.patience", "validations in a row without a lower loss that end the run; 0 = it goes on"},
      {"train.seed", "of weights, data order and dropout"},
      {"train.precision", "of weights in use and activations; fp8 = bf16 with fp8 linear layers"},
      {"train.loss_scale", "fp16: the first loss scale; halved when gradients overflow"},
      {"train.loss_scale_interval", "fp16: steps without overflow before the scale doubles"},
      {"train.gradients", "format of the blocks' matrix gradients; divided ones (ZeRO-2 and 3) are f32"},
      {"train.recompute", "activations made again in backward: none, selective or full"},
      {"train.device", "cpu, cuda or cuda:N"},
      {"train.deterministic", "the same bits when resumed on a GPU (on the CPU always)"},
      {"train.cuda_graphs", "replay each pass as a CUDA graph"},
      {"train.threads", "CPU threads; 0 = SINTER_THREADS, else the CPUs allowed"},
      {"optimizer.kind", "adam has no weight decay; muon uses AdamW for what is no matrix of a block"},
      {"optimizer.lr", "largest learning rate"},
      {"optimizer.beta1", "decay of the first moment"},
      {"optimizer.beta2", "decay of the second moment"},
      {"optimizer.eps", "added to the root of the second moment"},
      {"optimizer.weight_decay", "on tensors of two and more axes"},
      {"optimizer.momentum", "sgd's"},
      {"optimizer.clip", "largest gradient norm; 0 = no clipping"},
      {"optimizer.muon_lr", "muon: learning rate of the blocks' matrices; the rest uses lr"},
      {"optimizer.muon_momentum", "muon's"},
      {"optimizer.muon_iterations", "Newton-Schulz iterations of a muon step"},
      {"optimizer.states", "of the moments; bf16 rounds stochastically; 8bit: adam, adamw, without tp, ep, zero"},
      {"schedule.kind", "shape of the learning rate over the run"},
      {"schedule.warmup", "steps of linear growth from 0"},
      {"schedule.final_ratio", "last learning rate over the largest"},
      {"schedule.decay_share", "wsd: share of the steps spent decaying"},
      {"guard.on_nan", "when loss or gradient norm is not finite"},
      {"guard.on_outlier", "when loss or gradient norm is max_z deviations from its mean"},
      {"guard.max_z", "deviations that make an outlier"},
      {"guard.window", "steps the mean and deviation are taken over"},
      {"guard.max_skips", "skipped steps in a row before the run stops"},
      {"checkpoint.dir", "the run's folder"},
      {"checkpoint.every", "steps between checkpoints; 0 = by time and at the end"},
      {"checkpoint.minutes", "minutes between checkpoints when every is 0; 0 = at the end only"},
      {"checkpoint.initial", "one of step 0 too"},
      {"checkpoint.background", "written while training goes on, from a copy in host memory"},
      {"checkpoint.export", "format of the Hugging Face weights: train.precision, or the f32 masters"},
      {"checkpoint.keep", "newest native states kept"},
      {"checkpoint.export_every", "several ranks: steps between Hugging Face folders; 0 = at the end"},
      {"checkpoint.resume", "auto: newest in dir if any; never; or the path of a checkpoint"},
      {"checkpoint.time_limit", "seconds the job has; 0 = Slurm's, or none"},
      {"checkpoint.time_margin", "seconds kept for the last checkpoint before the limit"},
      {"log.every", "steps between lines of the metrics file"},
      {"log.metrics", "the metrics file; empty = checkpoint.dir/metrics.jsonl"},
      {"log.sample_prompts", "prompts continued during training"},
      {"log.sample_every", "steps between samples; 0 = never"},
      {"log.sample_tokens", "tokens of a sample"},
      {"log.eval_every", "steps between validation losses; 0 = at the end"},
      {"log.eval_batches", "micro-batches of one validation, over all ranks"},
      {"eval.tasks", "tasks, groups or task files that the model is tried on (`sinter eval --list`)"},
      {"eval.every", "steps between them; 0 = at the end"},
      {"eval.limit", "documents of each task: 0 all, below 1 a share"},
      {"eval.few_shot", "examples before each question; -1 = the task's"},
      {"eval.chat", "ask through the model's chat template"},
      {"eval.allow_code", "tasks that run programs which the model writes, in a sandbox"},
      {"eval.data", "folder of the tasks' files; empty = SINTER_EVAL_DATA, else data/eval"},
      {"parallel.layout", "given: the axes below; auto: the planner's best for the launch; tune: its best few, tried"},
      {"parallel.dp", "data-parallel ranks; 0 = what the other axes leave of the launch"},
      {"parallel.replica", "copies of the ZeRO group: state is divided among dp / replica ranks (hybrid sharding)"},
      {"parallel.zero", "what the ranks divide (ZeRO): 1 optimizer state, masters, 2 and gradients, 3 and weights"},
      {"parallel.tp", "tensor-parallel ranks: parts of every layer"},
      {"parallel.sequence_parallel", "norms, dropout and residual split along the sequence among the tp ranks"},
      {"parallel.pp", "pipeline stages"},
      {"parallel.interleave", "model chunks per pipeline stage; above 1 with schedule interleaved only"},
      {"parallel.schedule", "order of a pipeline's micro-batches"},
      {"parallel.cp", "context-parallel ranks: parts of every sequence"},
      {"parallel.context", "how keys and values get to the cp ranks: around a ring, or gathered from all at once"},
      {"parallel.ep", "expert-parallel ranks, laid over the data and context ranks of a stage"},
      {"parallel.expert_capacity", "rows of a round between ep ranks, over an even spread's; more take further rounds"},
      {"parallel.offload_optimizer", "masters and moments in host memory, updated there"},
      {"parallel.offload_gradients", "gradients in host memory, summed there"},
      {"parallel.offload_parameters", "weights in host memory, streamed in by block"},
      {"parallel.offload_activations", "inputs of blocks in host memory, with train.recompute = \"full\""},
      {"parallel.offload_folder", "files in this folder hold what is offloaded, instead of host memory"},
      {"parallel.device_memory_gib", "the most that a rank may take of its device; 0 = all that is there"},
      {"parallel.bucket_mib", "MiB of gradients reduced together behind the backward pass"},
      {"parallel.timeout", "seconds a rank waits for the others in one call before it fails; 0 = for ever"},
  };
  return table;
}

struct TemplateLine {
  const char* key;
  const char* value;
};
struct Template {
  const char* about;
  std::vector<TemplateLine> lines;
};

const std::map<std::string, Template>& templates() {
  static const std::map<std::string, Template> table{
      {"small",
       {"A small model on a laptop's CPU, from your own text.",
        {{"model.family", "\"llama\""},
         {"model.hidden", "256"},
         {"model.layers", "6"},
         {"model.heads", "8"},
         {"model.kv_heads", "4"},
         {"data.sources", "\"my.txt\""},
         {"data.tokenizer", "\"my-tokenizer\""},
         {"data.sequence_length", "256"},
         {"train.tokens", "5_000_000"},
         {"train.batch_tokens", "8192"},
         {"train.micro_batch", "8"},
         {"train.precision", "\"bf16\""},
         {"optimizer.lr", "1e-3"},
         {"schedule.warmup", "50"},
         {"checkpoint.dir", "\"run\""},
         {"log.sample_prompts", "[\"Once upon a time\"]"},
         {"log.sample_every", "100"}}}},
      {"gpu",
       {"A 124M-parameter model on one GPU, from token shards (`sinter data tokenize`).",
        {{"model.family", "\"llama\""},
         {"model.hidden", "768"},
         {"model.layers", "12"},
         {"model.heads", "12"},
         {"model.kv_heads", "4"},
         {"data.sources", "\"data/train.tok\""},
         {"data.validation", "\"data/valid.tok\""},
         {"data.tokenizer", "\"my-tokenizer\""},
         {"data.sequence_length", "1024"},
         {"train.tokens", "2_500_000_000"},
         {"train.batch_tokens", "524288"},
         {"train.micro_batch", "64"},
         {"train.precision", "\"bf16\""},
         {"train.device", "\"cuda\""},
         {"optimizer.lr", "6e-4"},
         {"schedule.warmup", "700"},
         {"checkpoint.dir", "\"run\""},
         {"log.eval_every", "250"}}}},
      {"cluster",
       {"A 1B-parameter model over many ranks: `srun sinter train` or `mpirun sinter train`, one rank a GPU.",
        {{"model.family", "\"llama\""},
         {"model.hidden", "2048"},
         {"model.layers", "16"},
         {"model.heads", "32"},
         {"model.kv_heads", "8"},
         {"model.ffn", "8192"},
         {"data.sources", "\"data/shards\""},
         {"data.tokenizer", "\"my-tokenizer\""},
         {"data.sequence_length", "4096"},
         {"train.tokens", "20_000_000_000"},
         {"train.batch_tokens", "1048576"},
         {"train.micro_batch", "4"},
         {"train.precision", "\"bf16\""},
         {"train.device", "\"cuda\""},
         {"train.recompute", "\"selective\""},
         {"optimizer.lr", "4e-4"},
         {"schedule.warmup", "1000"},
         {"checkpoint.dir", "\"run\""},
         {"checkpoint.every", "500"},
         {"checkpoint.time_margin", "300"},
         {"parallel.dp", "0"}}}}};
  return table;
}

}  // namespace

std::string_view key_meaning(std::string_view section, std::string_view name) {
  const auto found = meanings().find(fmt::format("{}.{}", section, name));
  return found == meanings().end() ? std::string_view() : found->second;
}

std::string other_section_hint(std::string_view name) {
  for (const auto& [full, unused] : meanings()) {
    if (full.substr(full.find('.') + 1) == name) return fmt::format("; did you mean '{}'?", full);
  }
  return "";
}

std::vector<std::string> template_names() {
  std::vector<std::string> names;
  for (const auto& [name, unused] : templates()) names.push_back(name);
  return names;
}

std::string recipe_template(const std::string& kind) {
  const auto found = templates().find(kind);
  if (found == templates().end()) {
    base::fail_usage("there is no template '{}'; known: {}{}", kind, fmt::join(template_names(), ", "),
                     base::did_you_mean(kind, template_names()));
  }
  std::string text = fmt::format(
      "# {}\n# All keys: sinter train --keys. What it would need: sinter train FILE --dry-run\n", found->second.about);
  std::string section;
  for (const auto& [key, value] : found->second.lines) {
    const std::string_view full = key;
    const std::string_view own_section = full.substr(0, full.find('.')), name = full.substr(full.find('.') + 1);
    if (section != own_section) text += fmt::format("\n[{}]\n", section = own_section);
    const std::string assignment = fmt::format("{} = {}", name, value);
    text += fmt::format("{:<34}  # {}\n", assignment, key_meaning(own_section, name));
  }
  return text;
}

}  // namespace sinter::spec
