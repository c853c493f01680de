#include "quant/folder/awq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/table.h"

namespace sinter::quant {
namespace {

using Slot = Layer::Slot;
using spec::ParameterPart;

// A weight that reads the inputs which are to be scaled.
struct Reader {
  Slot* slot;
  const ParameterPart* part;
  const Hessian* inputs;
  std::vector<float> values;
};

void multiply_columns(std::vector<float>& values, const std::vector<float>& scale, bool divides) {
  const size_t K = scale.size();
  for (size_t i = 0; i < values.size(); ++i) values[i] = divides ? values[i] / scale[i % K] : values[i] * scale[i % K];
}

// How far the layer's outputs move: the sum of (d H) * d over the rows of the errors d.
double output_error(const std::vector<float>& errors, int64_t rows, const Hessian& inputs) {
  const int64_t K = inputs.columns();
  core::Allocator& memory = core::runtime({}).allocator();
  const core::Tensor d = core::make_tensor(memory, {rows, K}, errors);
  core::Tensor product(memory, {rows, K}, core::DType::f32);
  kernels::MatmulArgs args;
  args.a = d;
  args.b = {.data = inputs.matrix()};
  args.c = product;
  kernels::kernels_for({}).matmul(core::runtime({}).stream(), args);
  double sum = 0;
  for (size_t i = 0; i < errors.size(); ++i)
    sum += static_cast<double>(errors[i]) * static_cast<double>(product.data<float>()[i]);
  return sum;
}

double error_with(const std::vector<Reader>& readers, const std::vector<float>& scale, IntegerForm form) {
  form.searches = false;
  double sum = 0;
  for (const Reader& reader : readers) {
    std::vector<float> scaled = reader.values;
    multiply_columns(scaled, scale, false);
    const IntegerWeight rounded = round_nearest(scaled, reader.part->rows, *reader.inputs, form);
    const auto K = static_cast<int64_t>(scale.size());
    for (size_t i = 0; i < scaled.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      scaled[i] = (scaled[i] - rounded.number(at / K, at % K)) / scale[i % scale.size()];
    }
    sum += output_error(scaled, reader.part->rows, *reader.inputs);
  }
  return sum;
}

// The scale of the inputs with the least error: their size to some power, over that of the weights to another.
std::vector<float> find_scale(const std::vector<Reader>& readers, const IntegerForm& form) {
  constexpr int kSteps = 20;
  const auto K = static_cast<size_t>(readers[0].inputs->columns());
  std::vector<double> inputs(K), weights(K);
  double tokens = 0;
  for (const Reader& reader : readers) {
    const std::vector<float> diagonal = reader.inputs->diagonal();
    for (size_t c = 0; c < K; ++c) inputs[c] += static_cast<double>(diagonal[c]);
    for (size_t i = 0; i < reader.values.size(); ++i)
      weights[i % K] += std::fabs(static_cast<double>(reader.values[i]));
    tokens += static_cast<double>(reader.inputs->num_rows());
  }
  for (double& x : inputs) x = std::sqrt(x / std::max(1.0, tokens)) + 1e-8;
  const double mean = std::max(1e-30, std::accumulate(weights.begin(), weights.end(), 0.0) / static_cast<double>(K));
  for (double& w : weights) w = w / mean + 1e-4;
  std::vector<float> best(K, 1.0f);
  double least = error_with(readers, best, form);
  for (int step = 1; step <= kSteps; ++step) {
    for (const bool counts_weights : {false, true}) {
      const double power = static_cast<double>(step) / kSteps;
      std::vector<double> raw(K);
      for (size_t c = 0; c < K; ++c)
        raw[c] = std::max(1e-4, std::pow(inputs[c], power) / (counts_weights ? std::pow(weights[c], 1 - power) : 1));
      const auto [low, high] = std::minmax_element(raw.begin(), raw.end());
      const double middle = std::sqrt(*low * *high);
      std::vector<float> scale(K);
      std::transform(raw.begin(), raw.end(), scale.begin(), [&](double x) { return static_cast<float>(x / middle); });
      const double error = error_with(readers, scale, form);
      if (error < least) least = error, best = scale;
    }
  }
  return best;
}

class Scaler {
 public:
  Scaler(Layer& layer, const IntegerForm& form, std::map<const Slot*, std::vector<Hessian>>& inputs)
      : layer_(layer), form_(form), inputs_(inputs) {}

  // Inputs that come from a norm.
  void behind_norm(const std::string& norm, Slot* slot) {
    Slot* weight = layer_.find(norm + ".weight");
    if (!slot || !weight || !inputs_.contains(slot)) return;
    const std::vector<float> scale = scale_readers(slot, -1);
    divide_vector(weight, scale), divide_vector(layer_.find(norm + ".bias"), scale);
    if (Slot* router = layer_.find("moe.router.weight"); router && norm == "mlp_norm")
      multiply(*router, router->info.parts[0], scale);
  }

  // Inputs that are rows of another weight, of each expert.
  void behind_rows(Slot* source, Slot* source_bias, std::initializer_list<const char*> names, Slot* slot) {
    if (!source || !slot || !inputs_.contains(slot)) return;
    for (const ParameterPart& part : source->info.parts) {
      if (std::none_of(names.begin(), names.end(), [&](const char* name) { return part.hf_name.ends_with(name); }))
        continue;
      if (part.rows != slot->info.shape[-1]) continue;
      const std::vector<float> scale = scale_readers(slot, part.expert);
      divide_rows(*source, part, scale);
      if (!source_bias) continue;
      for (const ParameterPart& bias : source_bias->info.parts) {
        if (bias.row_begin == part.row_begin) divide_rows(*source_bias, bias, scale);
      }
    }
  }

 private:
  // Finds the scale of one expert's readers (-1: of all), and makes their columns larger by it.
  std::vector<float> scale_readers(Slot* slot, int64_t expert) {
    std::vector<Hessian>& inputs = inputs_.at(slot);
    std::vector<Reader> readers;
    for (const ParameterPart& part : slot->info.parts) {
      if (expert >= 0 && part.expert != expert) continue;
      const Hessian& read = inputs[static_cast<size_t>(std::max<int64_t>(0, part.expert))];
      readers.push_back({slot, &part, &read, layer_.read(*slot, part)});
    }
    const std::vector<float> scale = find_scale(readers, form_);
    for (const Reader& reader : readers) multiply(*slot, *reader.part, scale);
    for (size_t e = 0; e < inputs.size(); ++e) {
      if (expert < 0 || static_cast<int64_t>(e) == expert) inputs[e] = inputs[e].divided_by(scale);
    }
    return scale;
  }

  void multiply(Slot& slot, const ParameterPart& part, const std::vector<float>& scale) {
    std::vector<float> values = layer_.read(slot, part);
    multiply_columns(values, scale, false);
    layer_.write(slot, part, values);
  }

  void divide_vector(Slot* slot, const std::vector<float>& scale) {
    if (!slot) return;
    std::vector<float> values = layer_.read(*slot, slot->info.parts[0]);
    multiply_columns(values, scale, true);
    layer_.write(*slot, slot->info.parts[0], values);
  }

  void divide_rows(Slot& slot, const ParameterPart& part, const std::vector<float>& scale) {
    std::vector<float> values = layer_.read(slot, part);
    const size_t columns = values.size() / scale.size();
    for (size_t i = 0; i < values.size(); ++i) values[i] /= scale[i / columns];
    layer_.write(slot, part, values);
  }

  Layer& layer_;
  const IntegerForm& form_;
  std::map<const Slot*, std::vector<Hessian>>& inputs_;
};

}  // namespace

void scale_for_rounding(Layer& layer, const spec::ModelSpec& spec, const IntegerForm& form,
                        std::map<const Slot*, std::vector<Hessian>>& inputs) {
  Scaler scaler(layer, form, inputs);
  auto either = [&](const char* dense, const char* sparse) {
    Slot* slot = layer.find(dense);
    return slot ? slot : layer.find(sparse);
  };
  Slot *up = either("mlp.up.weight", "moe.up.weight"), *down = either("mlp.down.weight", "moe.down.weight");
  scaler.behind_norm("attention_norm", layer.find("attention.qkv.weight"));
  // Several heads of queries share one of values: then no scale of a column of `out` is one head's own.
  if (spec.num_heads == spec.num_kv_heads)
    scaler.behind_rows(layer.find("attention.qkv.weight"), layer.find("attention.qkv.bias"), {"v_proj.weight"},
                       layer.find("attention.out.weight"));
  scaler.behind_norm("mlp_norm", up);
  if (spec.gated_mlp) scaler.behind_rows(up, nullptr, {"up_proj.weight", "w3.weight"}, down);
}

}  // namespace sinter::quant
