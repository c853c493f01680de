#include "bench/decode.h"

#include <algorithm>
#include <memory>

#include "base/rng.h"
#include "bench/gpu_ceilings.h"
#include "engine/engine.h"
#include "models/transformer.h"

namespace sinter::bench {
namespace {

const core::Device kDevice{core::DeviceKind::cuda, 0};

spec::ModelSpec shape_of(const std::string& name) {
  spec::ModelSpec s;
  s.vocab_size = 128256, s.hidden = 4096, s.num_layers = 32, s.num_heads = 32, s.num_kv_heads = 8, s.head_dim = 128;
  s.ffn = 14336, s.max_positions = 131072;
  s.rope.kind = spec::RopeKind::standard;
  s.rope.theta = 5e5;
  if (name == "7B") s.vocab_size = 32000, s.num_kv_heads = 32, s.ffn = 11008;
  if (name == "small")
    s.vocab_size = 4096, s.hidden = 512, s.num_layers = 4, s.num_heads = 8, s.num_kv_heads = 2, s.head_dim = 64,
    s.ffn = 1536;
  return s;
}

// A model whose numbers are drawn once for a short stretch and repeated: only their bytes matter here.
struct RandomModel {
  explicit RandomModel(const std::string& name) : spec(shape_of(name)) {
    store = std::make_unique<models::ParameterStore>(
        spec, models::StoreOptions{.device = kDevice, .compute = core::DType::bf16, .keeps_derived = true});
    core::DeviceRuntime& device = core::runtime(kDevice);
    constexpr size_t kNumbers = (size_t{1} << 20) - 17;  // no row is another's copy
    base::CounterRng rng{11, 5};
    std::vector<base::bf16> block(kNumbers);
    for (size_t i = 0; i < kNumbers; ++i) block[i] = base::bf16(0.04f * (rng.uniform(i) - 0.5f));
    const core::Tensor& all = store->compute();
    const size_t bytes = all.bytes();
    size_t done = std::min(bytes, kNumbers * sizeof(base::bf16));
    device.copy_to_device(all.raw(), block.data(), done, device.stream());
    while (done < bytes) {
      const size_t piece = std::min(done, bytes - done);
      device.copy_within(all.data<char>() + done, all.raw(), piece, device.stream());
      done += piece;
    }
    for (auto& slot : store->slots()) {
      if (slot.info.shape.rank() == 1 && slot.parameter.master)
        kernels::kernels_for(kDevice).fill(device.stream(), {slot.parameter.master, 1.0f});
    }
    device.synchronize(device.stream());
    transformer = std::make_unique<models::Transformer>(spec, *store);
  }
  // Gives the blocks' matrices numbers in fp8 with a scale for each row, in place of those in bf16.
  void use_fp8() {
    core::DeviceRuntime& device = core::runtime(kDevice);
    const base::CounterRng rng{12, 6};
    std::vector<uint8_t> codes((size_t{1} << 20) - 19);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(rng.bits(i) & 0xbf);  // no NaN
    for (auto& slot : store->slots()) {
      if (slot.info.layer < 0 || slot.info.layer >= spec.num_layers || slot.info.shape.rank() != 2) continue;
      auto blocks = std::make_shared<core::WeightBlocks>();
      blocks->rows = slot.info.shape[0], blocks->columns = slot.info.shape[1];
      core::WeightPart part{.format = base::WeightFormat::fp8_e4m3, .rows = blocks->rows, .group = blocks->columns};
      part.data = core::Tensor(device.allocator(), {blocks->rows * blocks->columns}, core::DType::u8);
      for (size_t done = 0; done < part.data.bytes(); done += codes.size()) {
        device.copy_to_device(part.data.data<char>() + done, codes.data(),
                              std::min(codes.size(), part.data.bytes() - done), device.stream());
      }
      part.scales = core::Tensor(device.allocator(), {blocks->rows, 1}, core::DType::f32);
      kernels::kernels_for(kDevice).fill(device.stream(), {part.scales, 0.01f});
      blocks->parts.push_back(part);
      slot.parameter.weight.blocks = blocks;
      fp8_elements += blocks->rows * blocks->columns;
    }
    device.synchronize(device.stream());
  }
  // Bytes of the weights that a decoded token reads.
  double weight_bytes() const {
    const double embedding = static_cast<double>(spec.vocab_size * spec.hidden);
    return 2.0 * (static_cast<double>(store->num_elements()) - embedding) - static_cast<double>(fp8_elements);
  }
  double kv_bytes_per_token() const { return 4.0 * static_cast<double>(spec.num_layers * spec.kv_width()); }

  spec::ModelSpec spec;
  int64_t fp8_elements = 0;
  std::unique_ptr<models::ParameterStore> store;
  std::unique_ptr<models::Transformer> transformer;
};

std::vector<int32_t> random_prompt(int64_t length, int64_t vocab, uint64_t index) {
  const base::CounterRng rng{23, index};
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < length; ++i)
    tokens.push_back(static_cast<int32_t>(rng.bits(static_cast<uint64_t>(i)) % static_cast<uint32_t>(vocab)));
  return tokens;
}

struct DecodeCase {
  const char* model;
  int64_t batch, prompt, new_tokens;
  bool is_fp8 = false;
};

struct Times {
  double prefill_seconds = 0, decode_seconds = 0;
  int64_t decode_tokens = 0, decode_steps = 0;
};

// Prompts until every request has its first token, then decoding until all have ended.
Times run_once(engine::Engine& engine, const DecodeCase& c, int64_t vocab, uint64_t seed) {
  const int64_t before = engine.stats().num_steps;
  for (int64_t b = 0; b < c.batch; ++b) {
    engine::Request request;
    request.prompt = random_prompt(c.prompt, vocab, seed * 1000 + static_cast<uint64_t>(b));
    request.max_new_tokens = c.new_tokens;
    request.sampling.temperature = 0;
    engine.submit(std::move(request));
  }
  Times times;
  int64_t with_tokens = 0, tokens = 0, last_prefill_step = before;
  const double begin = now_seconds();
  double decode_begin = begin;
  while (engine.has_work()) {
    engine.step();
    for (const engine::Output& out : engine.take_outputs()) {
      tokens += static_cast<int64_t>(out.tokens.size());
      with_tokens += out.usage.output_tokens == 1;
    }
    if (with_tokens >= c.batch && decode_begin == begin) {
      decode_begin = now_seconds();
      times.decode_tokens = -tokens;
      last_prefill_step = engine.stats().num_steps;
    }
  }
  times.prefill_seconds = decode_begin - begin;
  times.decode_seconds = now_seconds() - decode_begin;
  times.decode_tokens += tokens;
  times.decode_steps = engine.stats().num_steps - last_prefill_step;
  return times;
}

engine::EngineOptions engine_options(int64_t sequences, int64_t tokens_each) {
  engine::EngineOptions options;
  options.kv_tokens = sequences * (tokens_each + 32);
  options.max_running = sequences;
  options.step_tokens = 8192;
  options.max_waiting_tokens = int64_t{1} << 30;
  return options;
}

constexpr DecodeCase kCases[] = {{"7B", 1, 128, 256},  {"7B", 1, 128, 256, true}, {"8B", 1, 512, 256},
                                 {"8B", 8, 512, 256},  {"8B", 32, 512, 256},      {"8B", 128, 512, 256},
                                 {"8B", 64, 4096, 64}, {"8B", 1, 32768, 64},      {"8B", 1, 8192, 2}};

}  // namespace

Report bench_decode(const Options& options) {
  Report report{"decode",
                "generation with random bf16 weights on " + core::runtime(kDevice).description(),
                {{"model", "model"},
                 {"batch", "batch", 0},
                 {"prompt", "prompt", 0},
                 {"prefill", "prompt tok/s", 0},
                 {"decode", "decode tok/s", 1},
                 {"step", "ms a step", 3},
                 {"rate", "read TB/s", 2},
                 {"share", "of copy rate %", 1}},
                {}};
  double copy_bytes = 0;
  std::string loaded;
  std::unique_ptr<RandomModel> model;
  for (const DecodeCase& c : kCases) {
    const std::string kind = fmt::format("{}{}", c.model, c.is_fp8 ? " fp8" : "");
    const std::string name = fmt::format("{} b{} {}", kind, c.batch, c.prompt);
    if (!options.only.empty() && name.find(options.only) == std::string::npos) continue;
    if (copy_bytes == 0) copy_bytes = measure_ceilings(kDevice).copy_bytes;
    if (loaded != kind) {
      model.reset();
      model = std::make_unique<RandomModel>(c.model);
      if (c.is_fp8) model->use_fp8();
      loaded = kind;
    }
    engine::Engine engine(*model->transformer, engine_options(c.batch, 2 * (c.prompt + c.new_tokens)));
    // The first run measures kernels and captures graphs. Where prompts are long it has few of them.
    const bool is_long = c.batch * c.prompt > 65536;
    run_once(engine, c, model->spec.vocab_size, 1);
    Times t = run_once(engine, c, model->spec.vocab_size, is_long ? 1 : 2);  // long prompts come from the cache
    const double steps = static_cast<double>(std::max<int64_t>(1, t.decode_steps));
    const double context = static_cast<double>(c.prompt) + static_cast<double>(c.new_tokens) / 2;
    const double bytes = model->weight_bytes() + static_cast<double>(c.batch) * context * model->kv_bytes_per_token();
    const double rate = bytes * steps / t.decode_seconds;
    report.rows.push_back({kind, static_cast<double>(c.batch), static_cast<double>(c.prompt),
                           is_long ? Cell{} : Cell{static_cast<double>(c.batch * c.prompt) / t.prefill_seconds},
                           static_cast<double>(t.decode_tokens) / t.decode_seconds, 1e3 * t.decode_seconds / steps,
                           rate / 1e12, 100 * rate / copy_bytes});
    std::fputs((report.to_text() + "\n").c_str(), stderr);
  }
  return report;
}

Report bench_serve(const Options& options) {
  Report report{
      "gpu_serve",
      "256 requests at once of 32 to 1,024 prompt tokens and 256 new ones, 8B, random bf16 weights",
      {{"round", "round", 0}, {"output", "output tok/s", 0}, {"total", "total tok/s", 0}, {"seconds", "seconds", 2}},
      {}};
  if (!options.only.empty() && options.only != "gpu_serve") return report;
  const RandomModel model("8B");
  constexpr int64_t kRequests = 256, kNew = 256, kLongest = 1024;
  engine::EngineOptions o = engine_options(kRequests, kLongest + kNew);
  o.prefix_cache = false;
  engine::Engine engine(*model.transformer, o);
  for (int round = 0; round < 3; ++round) {
    const base::CounterRng rng{29, static_cast<uint64_t>(round)};
    int64_t prompt_tokens = 0, tokens = 0;
    std::vector<engine::Request> requests(kRequests);
    for (size_t i = 0; i < requests.size(); ++i) {
      const int64_t length = 32 + rng.bits(i) % (kLongest - 31);
      prompt_tokens += length;
      requests[i].prompt = random_prompt(length, model.spec.vocab_size, static_cast<uint64_t>(round) * 1000 + i);
      requests[i].max_new_tokens = kNew;
      requests[i].sampling.temperature = 0;
    }
    const double begin = now_seconds();
    for (engine::Request& request : requests) engine.submit(std::move(request));
    while (engine.has_work()) {
      engine.step();
      for (const engine::Output& out : engine.take_outputs()) tokens += static_cast<int64_t>(out.tokens.size());
    }
    const double seconds = now_seconds() - begin;
    report.rows.push_back({static_cast<double>(round), static_cast<double>(tokens) / seconds,
                           static_cast<double>(tokens + prompt_tokens) / seconds, seconds});
  }
  return report;
}

}  // namespace sinter::bench
