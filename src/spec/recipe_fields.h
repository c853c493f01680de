// The keys of a recipe: where each value goes, which numbers and words it takes. What walks them (reader, writer, the
// list of names) is a visitor with section(), value(), choice() and the like, as in recipe_text.h. Only recipe.cc
// includes it.
#pragma once
#include "spec/recipe.h"
#include "spec/recipe_text.h"

namespace sinter::spec {

inline const ChoiceNames<base::DType> kPrecisions{{"f32", base::DType::f32},   {"fp32", base::DType::f32},
                                                  {"bf16", base::DType::bf16}, {"f16", base::DType::f16},
                                                  {"fp16", base::DType::f16},  {"fp8", base::DType::f8e4m3}};
inline const ChoiceNames<base::DType> kShortFormats{
    {"f32", base::DType::f32}, {"fp32", base::DType::f32}, {"bf16", base::DType::bf16}};
// Of optimizer states: u8 is codes of 8 bits with a scale for every 256.
inline const ChoiceNames<base::DType> kStateFormats{
    {"f32", base::DType::f32}, {"fp32", base::DType::f32}, {"bf16", base::DType::bf16}, {"8bit", base::DType::u8}};
inline const ChoiceNames<Recompute> kRecomputes{
    {"none", Recompute::none}, {"selective", Recompute::selective}, {"full", Recompute::full}};
inline const ChoiceNames<PipelineKind> kPipelines{{"1f1b", PipelineKind::one_f_one_b},
                                                  {"gpipe", PipelineKind::gpipe},
                                                  {"interleaved", PipelineKind::interleaved},
                                                  {"zb-h1", PipelineKind::zero_bubble}};
inline const ChoiceNames<ContextKind> kContexts{{"ring", ContextKind::ring}, {"gather", ContextKind::gather}};
inline const ChoiceNames<LayoutChoice> kLayouts{
    {"given", LayoutChoice::given}, {"auto", LayoutChoice::automatic}, {"tune", LayoutChoice::tune}};
inline const ChoiceNames<CudaGraphs> kCudaGraphs{
    {"auto", CudaGraphs::automatic}, {"on", CudaGraphs::on}, {"off", CudaGraphs::off}};
inline const ChoiceNames<Packing> kPackings{{"documents", Packing::documents}, {"stream", Packing::stream}};
inline const ChoiceNames<OptimizerKind> kOptimizers{{"sgd", OptimizerKind::sgd},
                                                    {"adam", OptimizerKind::adam},
                                                    {"adamw", OptimizerKind::adamw},
                                                    {"muon", OptimizerKind::muon}};
inline const ChoiceNames<ScheduleKind> kSchedules{{"constant", ScheduleKind::constant},
                                                  {"cosine", ScheduleKind::cosine},
                                                  {"linear", ScheduleKind::linear},
                                                  {"wsd", ScheduleKind::wsd}};
inline const ChoiceNames<ExportFormat> kExports{{"precision", ExportFormat::precision}, {"f32", ExportFormat::f32}};
// An update with numbers that are not finite would destroy the weights, so one of these it must be.
inline const ChoiceNames<GuardAction> kNanGuards{{"skip", GuardAction::skip}, {"stop", GuardAction::stop}};
inline const ChoiceNames<GuardAction> kGuards{
    {"off", GuardAction::off}, {"skip", GuardAction::skip}, {"stop", GuardAction::stop}};

// What a number may be.
inline constexpr NumberRange kPositive{1, 1e15};
inline constexpr NumberRange kShare{0, 1};
inline constexpr NumberRange kRanks{0, 1 << 24};
inline constexpr NumberRange kWidth{1, 1 << 20};  // of an axis of ranks
inline constexpr NumberRange kKept{
    0, 0.999999};  // of a moving average: with 1 nothing new comes in, and corrections divide by 0

// One function a section: its keys in order, the range of a number, the names of a choice.
template <class Visitor>
void visit_model(Visitor& v, ModelRecipe& model) {
  v.section("model");
  v.value("path", model.path);
  v.value("random", model.random);
  v.value("family", model.family);
  v.value("vocab_size", model.vocab_size);
  v.value("hidden", model.hidden);
  v.value("layers", model.layers);
  v.value("heads", model.heads);
  v.value("kv_heads", model.kv_heads);
  v.value("head_dim", model.head_dim);
  v.value("ffn", model.ffn);
  v.value("max_positions", model.max_positions);
  v.value("tied_head", model.tied_head);
  v.value("norm_eps", model.norm_eps);
  v.value("rope_theta", model.rope_theta);
  v.value("window", model.window);
  v.value("experts", model.experts);
  v.value("experts_per_token", model.experts_per_token, kPositive);
  v.value("expert_ffn", model.expert_ffn);
  v.value("balance_loss", model.balance_loss);
  v.value("dropout", model.dropout, kShare);
  v.value("init_std", model.init_std);
  v.value("mtp_heads", model.mtp_heads);
  v.value("mtp_weight", model.mtp_weight);
}

template <class Visitor>
void visit_data(Visitor& v, DataRecipe& data) {
  v.section("data");
  v.sources("sources", data.sources);
  v.sources("validation", data.validation);
  v.value("validation_share", data.validation_share, NumberRange{0, 0.5});
  v.value("tokenizer", data.tokenizer);
  v.value("sequence_length", data.sequence_length, NumberRange{1, 1 << 24});
  v.choice("packing", data.packing, kPackings);
  v.value("shuffle", data.shuffle);
  v.value("separator", data.separator);
  v.value("text_key", data.text_key);
  v.value("cache", data.cache);
}

template <class Visitor>
void visit_train(Visitor& v, TrainRecipe& train) {
  v.section("train");
  v.value("steps", train.steps);
  v.value("tokens", train.tokens);
  v.value("batch_tokens", train.batch_tokens);
  v.value("micro_batch", train.micro_batch, NumberRange{1, 1 << 20});
  v.value("ramp_from_tokens", train.ramp_from_tokens);
  v.value("ramp_steps", train.ramp_steps, NumberRange{0, 1 << 24});
  v.value("patience", train.patience, NumberRange{0, 100000});
  v.value("seed", train.seed);
  v.choice("precision", train.precision, kPrecisions);
  v.value("loss_scale", train.loss_scale, NumberRange{1, 16777216});
  v.value("loss_scale_interval", train.loss_scale_interval, kPositive);
  v.choice("gradients", train.gradients, kShortFormats);
  v.choice("recompute", train.recompute, kRecomputes);
  v.value("device", train.device);
  v.value("deterministic", train.deterministic);
  v.choice("cuda_graphs", train.cuda_graphs, kCudaGraphs);
  v.value("threads", train.threads, NumberRange{0, 1024});
}

template <class Visitor>
void visit_optimizer(Visitor& v, OptimizerRecipe& optimizer) {
  v.section("optimizer");
  v.choice("kind", optimizer.kind, kOptimizers);
  v.value("lr", optimizer.lr);
  v.value("beta1", optimizer.beta1, kKept);
  v.value("beta2", optimizer.beta2, kKept);
  v.value("eps", optimizer.eps, NumberRange{1e-30, 1});
  v.value("weight_decay", optimizer.weight_decay);
  v.value("momentum", optimizer.momentum, kKept);
  v.value("clip", optimizer.clip);
  v.value("muon_lr", optimizer.muon_lr);
  v.value("muon_momentum", optimizer.muon_momentum, kKept);
  v.value("muon_iterations", optimizer.muon_iterations, NumberRange{1, 20});
  v.choice("states", optimizer.states, kStateFormats);
}

template <class Visitor>
void visit_schedule(Visitor& v, ScheduleRecipe& schedule) {
  v.section("schedule");
  v.choice("kind", schedule.kind, kSchedules);
  v.value("warmup", schedule.warmup);
  v.value("final_ratio", schedule.final_ratio, kShare);
  v.value("decay_share", schedule.decay_share, kShare);
}

template <class Visitor>
void visit_guard(Visitor& v, GuardRecipe& guard) {
  v.section("guard");
  v.choice("on_nan", guard.on_nan, kNanGuards);
  v.choice("on_outlier", guard.on_outlier, kGuards);
  v.value("max_z", guard.max_z);
  v.value("window", guard.window, NumberRange{8, 1 << 16});
  v.value("max_skips", guard.max_skips, kPositive);
}

template <class Visitor>
void visit_checkpoint(Visitor& v, CheckpointRecipe& checkpoint) {
  v.section("checkpoint");
  v.value("dir", checkpoint.dir);
  v.value("every", checkpoint.every);
  v.value("minutes", checkpoint.minutes, NumberRange{0, 1e6});
  v.value("initial", checkpoint.initial);
  v.value("background", checkpoint.background);
  v.choice("export", checkpoint.exports, kExports);
  v.value("keep", checkpoint.keep, kPositive);
  v.value("export_every", checkpoint.export_every);
  v.value("resume", checkpoint.resume);
  v.value("time_limit", checkpoint.time_limit);
  v.value("time_margin", checkpoint.time_margin);
}

template <class Visitor>
void visit_log(Visitor& v, LogRecipe& log) {
  v.section("log");
  v.value("every", log.every, kPositive);
  v.value("metrics", log.metrics);
  v.strings("sample_prompts", log.sample_prompts);
  v.value("sample_every", log.sample_every);
  v.value("sample_tokens", log.sample_tokens, kPositive);
  v.value("eval_every", log.eval_every);
  v.value("eval_batches", log.eval_batches, kPositive);
}

template <class Visitor>
void visit_eval(Visitor& v, EvalRecipe& eval) {
  v.section("eval");
  v.strings("tasks", eval.tasks);
  v.value("every", eval.every);
  v.value("limit", eval.limit);
  v.value("few_shot", eval.few_shot, NumberRange{-1, 1024});
  v.value("chat", eval.chat);
  v.value("allow_code", eval.allow_code);
  v.value("data", eval.data);
}

template <class Visitor>
void visit_parallel(Visitor& v, ParallelSpec& parallel) {
  v.section("parallel");
  v.choice("layout", parallel.choice, kLayouts);
  int64_t dp = parallel.dp();
  v.value("dp", dp, kRanks);
  v.value("replica", parallel.replica, NumberRange{1, 1 << 20});
  SINTER_CHECK(dp % parallel.replica == 0, "parallel.dp {} is not a multiple of parallel.replica {}", dp,
               parallel.replica);
  parallel.shard = dp / parallel.replica;
  int64_t zero = parallel.zero;
  v.value("zero", zero, NumberRange{0, 3});
  parallel.zero = static_cast<int>(zero);
  v.value("tp", parallel.tp, kWidth);
  v.value("sequence_parallel", parallel.sequence_parallel);
  v.value("pp", parallel.pp, kWidth);
  v.value("interleave", parallel.interleave, kWidth);
  v.choice("schedule", parallel.schedule, kPipelines);
  v.value("cp", parallel.cp, kWidth);
  v.choice("context", parallel.context, kContexts);
  v.value("ep", parallel.ep, kWidth);
  v.value("expert_capacity", parallel.expert_capacity, NumberRange{1, 1024});
  v.value("offload_optimizer", parallel.offload.optimizer);
  v.value("offload_gradients", parallel.offload.gradients);
  v.value("offload_parameters", parallel.offload.parameters);
  v.value("offload_activations", parallel.offload.activations);
  v.value("offload_folder", parallel.offload.folder);
  v.value("device_memory_gib", parallel.device_memory_gib, NumberRange{0, 1 << 20});
  v.value("bucket_mib", parallel.bucket_mib, NumberRange{0.001, 1 << 20});
  v.value("timeout", parallel.timeout, NumberRange{0, 1e6});
}

// Walks every key of a recipe in order. The reader, the writer and the list of names are three visitors of this one
// function, so none of them can miss a key.
template <class Visitor>
void visit_recipe(Visitor& v, Recipe& r) {
  visit_model(v, r.model);
  visit_data(v, r.data);
  visit_train(v, r.train);
  visit_optimizer(v, r.optimizer);
  visit_schedule(v, r.schedule);
  visit_guard(v, r.guard);
  visit_checkpoint(v, r.checkpoint);
  visit_log(v, r.log);
  visit_eval(v, r.eval);
  visit_parallel(v, r.parallel);
}

}  // namespace sinter::spec
