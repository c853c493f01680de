#include "ops/adapter.h"

#include "base/error.h"
#include "base/rng.h"
#include "ops/linear.h"
#include "ops/norm.h"

namespace sinter::ops {
namespace {

using autograd::Adapter;

uint64_t name_hash(const std::string& name) {  // FNV-1a
  uint64_t h = 0xcbf29ce484222325ull;
  for (unsigned char c : name) h = (h ^ c) * 0x100000001b3ull;
  return h;
}

// What an adapter leaves for its backward.
struct Kept {
  Tensor h;      // (R, r): what a makes of its input
  Tensor norms;  // (rows) f32, with a magnitude
  Tensor z;      // (R, rows): the columns before they were scaled, with a magnitude
};

kernels::DropoutArgs drop_args(const Context& context, const Parameter& weight, const Adapter& adapter, const Tensor& x,
                               const Tensor& y) {
  const AdapterDropout& run = context.adapter_dropout;
  const uint64_t stream = base::mix_bits(base::mix_bits(run.step, name_hash(weight.name)), adapter.number);
  return {.p = adapter.dropout,
          .key = {run.seed, stream},
          .first_index = run.first_token * static_cast<uint64_t>(x.size(-1)),
          .x = x,
          .y = y};
}

// What a reads: x, or x with elements dropped.
Tensor input_of(const Context& context, const Parameter& weight, const Adapter& adapter, const Tensor& x) {
  if (!context.adapter_dropout.is_on || adapter.dropout == 0) return x;
  Tensor dropped = context.make(x.shape(), x.dtype());
  context.kernels.dropout(context.stream, drop_args(context, weight, adapter, x, dropped));
  return dropped;
}

bool covers(const Adapter& adapter, const Tensor& y) { return adapter.rows == y.size(-1); }

// The columns of an adapter as a matrix of their own.
Tensor columns_of(const Context& context, const Adapter& adapter, const Tensor& y) {
  if (covers(adapter, y)) return y;
  Tensor columns = context.make({y.rows(), adapter.rows}, y.dtype());
  context.kernels.copy_columns(context.stream,
                               {.x = y, .y = columns, .x_first = adapter.first_row, .columns = adapter.rows});
  return columns;
}

Kept add_term(const Context& context, const Parameter& weight, const Adapter& adapter, const Tensor& x,
              const Tensor& y) {
  Kept kept;
  kept.h = context.make({x.rows(), adapter.a->weight.rows()}, x.dtype());
  context.kernels.matmul(
      context.stream,
      {.a = input_of(context, weight, adapter, x), .b = adapter.a->weight, .c = kept.h, .transpose_b = true});
  kernels::MatmulArgs product{
      .a = kept.h, .b = adapter.b->weight, .c = y, .transpose_b = true, .accumulate = true, .alpha = adapter.scale};
  if (!covers(adapter, y)) product.c_first_column = adapter.first_row, product.c_columns = adapter.rows;
  context.kernels.matmul(context.stream, product);
  return kept;
}

void scale_rows(const Context& context, const Adapter& adapter, const Tensor& norms, const Tensor& y) {
  context.kernels.copy_columns(context.stream, {.x = y,
                                                .y = y,
                                                .x_first = adapter.first_row,
                                                .y_first = adapter.first_row,
                                                .columns = adapter.rows,
                                                .factors = adapter.magnitude->master,
                                                .divisors = norms});
}

// y += bias in every row, as a product with a column of ones.
void add_bias(const Context& context, const Parameter& bias, const Tensor& y) {
  Tensor ones = context.make({y.rows(), 1}, y.dtype());
  context.kernels.fill(context.stream, {ones, 1.0f});
  context.kernels.matmul(context.stream, {.a = ones,
                                          .b = {.data = bias.weight.data.reshape({y.size(-1), 1})},
                                          .c = y,
                                          .transpose_b = true,
                                          .accumulate = true});
}

// A gradient a^T b into a tensor that trains.
void add_gradient(const Context& context, const Tensor& a, const Tensor& b, Parameter& parameter, float scale) {
  if (!parameter.grad) return;
  context.kernels.matmul(context.stream, {.a = a,
                                          .b = {.data = b},
                                          .c = parameter.grad.tensor(),
                                          .transpose_a = true,
                                          .accumulate = parameter.grad.accumulates(),
                                          .alpha = scale});
  parameter.grad.wrote();
}

// dz (R, N): gradient of the sum of products. Adds into dx where it is given.
void term_backward(const Context& context, const Parameter& weight, const Adapter& adapter, const Kept& kept,
                   const Tensor& x, const Tensor& dz, const Tensor& dx) {
  const Tensor dy = columns_of(context, adapter, dz);  // (R, rows)
  add_gradient(context, dy, kept.h, *adapter.b, adapter.scale);
  Tensor dh = context.make(kept.h.shape(), dz.dtype());
  context.kernels.matmul(context.stream, {.a = dy, .b = adapter.b->weight, .c = dh, .alpha = adapter.scale});
  add_gradient(context, dh, input_of(context, weight, adapter, x), *adapter.a, 1.0f);
  if (!dx) return;
  if (!context.adapter_dropout.is_on || adapter.dropout == 0) {
    context.kernels.matmul(context.stream, {.a = dh, .b = adapter.a->weight, .c = dx, .accumulate = true});
    return;
  }
  Tensor part = context.make(dx.shape(), dx.dtype());
  context.kernels.matmul(context.stream, {.a = dh, .b = adapter.a->weight, .c = part});
  context.kernels.dropout(context.stream, drop_args(context, weight, adapter, part, part));
  context.kernels.axpby(context.stream, {.x = part, .y = dx, .alpha = 1.0f, .beta = 1.0f});
}

bool has_magnitude(const Parameter& weight) {
  for (const Adapter& adapter : weight.adapters) {
    if (adapter.magnitude) return true;
  }
  return false;
}

// Gradients of the magnitudes, and dy times what the columns were scaled by.
Tensor magnitude_backward(const Context& context, const Parameter& weight, const std::vector<Kept>& kept,
                          const Tensor& dy) {
  Tensor dz = context.make(dy.shape(), dy.dtype());
  context.kernels.axpby(context.stream, {.x = dy, .y = dz});
  for (const Adapter& adapter : weight.adapters) {
    if (!adapter.magnitude) continue;
    const Kept& own = kept[adapter.number];
    Parameter& magnitude = *adapter.magnitude;
    if (magnitude.grad) {
      context.kernels.column_dot(context.stream, {.a = dy,
                                                  .b = own.z,
                                                  .a_first = adapter.first_row,
                                                  .y = magnitude.grad.tensor(),
                                                  .divisors = own.norms,
                                                  .accumulate = magnitude.grad.accumulates()});
      magnitude.grad.wrote();
    }
    scale_rows(context, adapter, own.norms, dz);
  }
  return dz;
}

}  // namespace

Tensor adapted_norms(const Context& context, const Parameter& weight, const Adapter& adapter) {
  const int64_t K = weight.weight.columns();
  Tensor sum = context.make({adapter.rows, K}, DType::f32), norms = context.make({adapter.rows}, DType::f32);
  if (weight.weight.is_plain()) {
    context.kernels.axpby(context.stream, {.x = weight.weight.data.slice(adapter.first_row, adapter.rows), .y = sum});
  } else {
    context.kernels.dequantize(context.stream, {.weight = weight.weight, .first_row = adapter.first_row, .y = sum});
  }
  context.kernels.matmul(
      context.stream,
      {.a = adapter.b->weight.data, .b = adapter.a->weight, .c = sum, .accumulate = true, .alpha = adapter.scale});
  context.kernels.row_norm(context.stream, {sum, norms});
  return norms;
}

Variable adapted_linear(const Context& context, const Variable& x, Parameter& weight, Parameter* bias) {
  const bool scales = has_magnitude(weight);
  Tensor y = context.make({x.value.rows(), weight.weight.rows()}, x.value.dtype());
  linear_forward(context, x.value, weight, scales ? nullptr : bias, {}, y);
  std::vector<Kept> kept;
  for (const Adapter& adapter : weight.adapters) {
    kept.push_back(add_term(context, weight, adapter, x.value, y));
    if (!adapter.magnitude) continue;
    kept.back().norms = adapted_norms(context, weight, adapter);
    if (context.is_recording()) {
      kept.back().z = context.make({y.rows(), adapter.rows}, y.dtype());
      context.kernels.copy_columns(context.stream,
                                   {.x = y, .y = kept.back().z, .x_first = adapter.first_row, .columns = adapter.rows});
    }
    scale_rows(context, adapter, kept.back().norms, y);
  }
  if (scales && bias) add_bias(context, *bias, y);
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  Variable input = x.place();
  const Shape dx_shape = x.value.shape();
  context.tape->record(
      [context, saved = x.save(), input, slot = result.slot, &weight, bias, dx_shape, scales, kept = std::move(kept)] {
        Tensor dy = take_gradient(slot, "adapted_linear");
        add_bias_gradient(context, dy, bias);
        const Tensor dz = scales ? magnitude_backward(context, weight, kept, dy) : dy;
        Tensor dx = input.slot ? context.make(dx_shape, dy.dtype()) : Tensor();
        const Tensor x = saved.get();
        linear_backward(context, dz, x, weight, nullptr, {}, dx);
        for (const Adapter& adapter : weight.adapters)
          term_backward(context, weight, adapter, kept[adapter.number], x, dz, dx);
        if (dx) accumulate(context, input, std::move(dx));
      });
  return result;
}

EmbeddingTerms add_embedding_terms(const Context& context, const Tensor& tokens, const Parameter& table,
                                   const Tensor& y) {
  EmbeddingTerms terms;
  for (const Adapter& adapter : table.adapters) {
    Tensor rows = context.make({y.rows(), adapter.a->weight.columns()}, y.dtype());
    context.kernels.embedding_forward(context.stream, {.tokens = tokens, .table = adapter.a->weight.data, .y = rows});
    context.kernels.matmul(
        context.stream,
        {.a = rows, .b = adapter.b->weight, .c = y, .transpose_b = true, .accumulate = true, .alpha = adapter.scale});
    terms.rows.push_back(std::move(rows));
  }
  return terms;
}

void embedding_terms_backward(const Context& context, const Tensor& tokens, const Parameter& table,
                              const EmbeddingTerms& terms, const Tensor& dy) {
  for (const Adapter& adapter : table.adapters) {
    const Tensor& rows = terms.rows[adapter.number];
    add_gradient(context, dy, rows, *adapter.b, adapter.scale);
    if (!adapter.a->grad) continue;
    Tensor drows = context.make(rows.shape(), dy.dtype());
    context.kernels.matmul(context.stream, {.a = dy, .b = adapter.b->weight, .c = drows, .alpha = adapter.scale});
    begin_gradient(context, *adapter.a);
    context.kernels.embedding_backward(context.stream,
                                       {.tokens = tokens, .dy = drows, .dtable = adapter.a->grad.tensor()});
  }
}

}  // namespace sinter::ops
