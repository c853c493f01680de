#include "models/fp8_load.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/threads.h"
#include "models/weights.h"

namespace sinter::models {
namespace {

// Codes (rows, columns) and the scales of rows.
void round_rows(const std::vector<float>& values, int64_t columns, uint8_t* codes, float* scales) {
  const auto rows = static_cast<int64_t>(values.size()) / columns;
  base::parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = values.data() + r * columns;
      float largest = 0;
      for (int64_t c = 0; c < columns; ++c) largest = std::max(largest, std::abs(row[c]));
      const float scale = largest > 0 ? largest / base::f8e4m3::kLargest : 1.0f;
      scales[r] = scale;
      for (int64_t c = 0; c < columns; ++c) codes[r * columns + c] = base::f8e4m3(row[c] / scale).bits;
    }
  });
}

// Rows from row_begin on of every expert as one part: those of one tensor of the folder, of all where there is one
// expert (one product then reads what files keep apart).
core::WeightPart read_rows(const spec::ParameterSpec& info, int64_t row_begin, const io::TensorFolder& folder,
                           const core::Device& device, std::set<std::string>& used) {
  const int64_t columns = info.shape[-1], E = info.shape.rank() == 3 ? info.shape[0] : 1;
  core::WeightPart part{.format = base::WeightFormat::fp8_e4m3, .group = columns};
  auto belongs = [&](const spec::ParameterPart& p) { return E == 1 || p.row_begin == row_begin; };
  for (const spec::ParameterPart& p : info.parts) {
    if (belongs(p)) part.rows = std::max(part.rows, p.row_begin - row_begin + p.rows);
  }
  const Tensor codes(core::runtime({}).allocator(), {E, part.rows * columns}, DType::u8);
  const Tensor scales(core::runtime({}).allocator(), {E, part.rows, 1}, DType::f32);
  for (const spec::ParameterPart& p : info.parts) {
    if (!belongs(p)) continue;
    const int64_t first = std::max<int64_t>(0, p.expert) * part.rows + p.row_begin - row_begin;
    used.insert(find_plain_part(p, folder).name);
    round_rows(read_plain_part(info, p, folder), columns, codes.data<uint8_t>() + first * columns,
               scales.data<float>() + first);
  }
  part.data = codes, part.scales = scales;
  if (device.kind == core::DeviceKind::cpu) return part;
  core::DeviceRuntime& runtime = core::runtime(device);
  for (Tensor* t : {&part.data, &part.scales}) {
    const Tensor there(runtime.allocator(), t->shape(), t->dtype());
    send_bytes(runtime, there.raw(), t->raw(), t->bytes());
    *t = there;
  }
  return part;
}

}  // namespace

std::set<std::string> fp8_tensors(const spec::ModelSpec& spec) {
  std::set<std::string> names;
  for (const spec::ParameterSpec& p : spec::make_parameter_table(spec)) {
    const bool is_matrix = p.role == spec::ParameterRole::matrix || p.role == spec::ParameterRole::expert_matrix;
    const bool is_transposed =
        std::any_of(p.parts.begin(), p.parts.end(), [](const auto& part) { return part.transposed; });
    if (is_matrix && !is_transposed && p.layer >= 0 && p.layer < spec.num_layers) names.insert(p.name);
  }
  return names;
}

void load_in_fp8(ParameterStore& store, const spec::ModelSpec& spec, const io::TensorFolder& folder) {
  std::set<std::string> used;
  for (ParameterStore::Slot& slot : store.slots()) {
    const spec::ParameterSpec& info = slot.info;
    if (info.role == spec::ParameterRole::adapter) continue;
    if (!slot.is_apart) {
      load_plain_slot(store, slot, folder, used);
      continue;
    }
    auto blocks = std::make_shared<core::WeightBlocks>();
    *blocks = {
        .experts = info.shape.rank() == 3 ? info.shape[0] : 1, .rows = info.shape[-2], .columns = info.shape[-1]};
    for (int64_t row = 0; row < blocks->rows; row += blocks->parts.back().rows)
      blocks->parts.push_back(read_rows(info, row, folder, store.options().device, used));
    store.set_blocks(slot, std::move(blocks));
  }
  check_all_used(folder, spec, used);
}

}  // namespace sinter::models
