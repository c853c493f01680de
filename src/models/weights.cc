#include "models/weights.h"

#include <set>

#include "base/error.h"
#include "base/threads.h"

namespace sinter::models {
namespace {

std::vector<int64_t> disk_shape(const spec::Parameter& info, const spec::ParameterPart& part) {
  if (info.shape.rank() == 1) return {part.rows};
  const int64_t columns = info.shape[-1];
  return part.transposed ? std::vector<int64_t>{columns, part.rows} : std::vector<int64_t>{part.rows, columns};
}

// Where element (row, column) of a part stands: in the stored tensor, and in the part on disk.
template <class Visit>
void visit_part(const spec::Parameter& info, const spec::ParameterPart& part, Visit visit) {
  const bool is_vector = info.shape.rank() == 1;
  const int64_t columns = is_vector ? 1 : info.shape[-1];
  const int64_t stack_rows = is_vector ? info.shape[0] : info.shape[-2];
  const int64_t first = (part.expert < 0 ? 0 : part.expert * stack_rows) + part.row_begin;
  base::parallel_for(part.rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        visit((first + r) * columns + c, part.transposed ? c * part.rows + r : r * columns + c);
      }
    }
  });
}

bool is_known_extra(const std::string& name, const spec::ModelSpec& spec) {
  auto ends_with = [&](std::string_view suffix) {
    return name.size() >= suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
  };
  return ends_with("rotary_emb.inv_freq") || ends_with(".attn.bias") || ends_with(".attn.masked_bias") ||
         (spec.tied_head && name == "lm_head.weight");
}

// GPT-2's first published folders leave out the "transformer." prefix.
const io::TensorEntry& find_part(const io::TensorFolder& folder, const spec::ParameterPart& part) {
  constexpr std::string_view kPrefix = "transformer.";
  if (!folder.find(part.hf_name) && part.hf_name.starts_with(kPrefix)) {
    if (const io::TensorEntry* entry = folder.find(part.hf_name.substr(kPrefix.size()))) return *entry;
  }
  return folder.get(part.hf_name);
}

}  // namespace

void load_weights(ParameterStore& store, const spec::ModelSpec& spec, const io::TensorFolder& folder) {
  std::set<std::string> used;
  for (ParameterStore::Slot& slot : store.slots()) {
    std::vector<float> values(static_cast<size_t>(slot.info.num_elements()));
    for (const spec::ParameterPart& part : slot.info.parts) {
      const io::TensorEntry& entry = find_part(folder, part);
      used.insert(entry.name);
      const std::vector<int64_t> expected = disk_shape(slot.info, part);
      SINTER_CHECK(entry.shape == expected, "'{}': tensor '{}' has shape {}; config.json makes it {}", folder.path(),
                   entry.name, io::shape_to_string(entry.shape), io::shape_to_string(expected));
      SINTER_CHECK(base::is_floating(entry.dtype), "'{}': tensor '{}' is {}; expected f32, bf16, f16 or f64", folder.path(),
                   entry.name, base::dtype_name(entry.dtype));
      std::vector<float> disk(static_cast<size_t>(entry.num_elements()));
      base::convert_elements(entry.dtype, entry.bytes.data(), DType::f32, disk.data(), disk.size());
      visit_part(slot.info, part, [&](int64_t stored, int64_t on_disk) {
        values[static_cast<size_t>(stored)] = disk[static_cast<size_t>(on_disk)];
      });
    }
    store.set(slot, values);
  }
  for (const io::TensorEntry& entry : folder.entries()) {
    SINTER_CHECK(used.count(entry.name) || is_known_extra(entry.name, spec),
                 "'{}': tensor '{}' has no place in this model; config.json does not describe these weights", folder.path(),
                 entry.name);
  }
}

std::vector<DiskTensor> split_parts(const spec::Parameter& info, const std::vector<float>& values) {
  std::vector<DiskTensor> result;
  for (const spec::ParameterPart& part : info.parts) {
    DiskTensor t{part.hf_name, disk_shape(info, part), {}};
    int64_t count = 1;
    for (int64_t d : t.shape) count *= d;
    t.values.resize(static_cast<size_t>(count));
    visit_part(info, part, [&](int64_t stored, int64_t on_disk) {
      t.values[static_cast<size_t>(on_disk)] = values[static_cast<size_t>(stored)];
    });
    result.push_back(std::move(t));
  }
  return result;
}

void save_weights(const ParameterStore& store, const std::string& folder, DType dtype) {
  io::TensorFolderWriter writer(folder);
  for (const ParameterStore::Slot& slot : store.slots()) {
    for (const spec::ParameterPart& part : slot.info.parts) {
      writer.declare(part.hf_name, dtype, disk_shape(slot.info, part));
    }
  }
  for (const ParameterStore::Slot& slot : store.slots()) {
    for (const DiskTensor& t : split_parts(slot.info, store.values_of(slot))) {
      std::vector<std::byte> bytes(t.values.size() * base::dtype_bytes(dtype));
      base::convert_elements(DType::f32, t.values.data(), dtype, bytes.data(), t.values.size());
      writer.write(t.name, bytes);
    }
  }
  writer.commit();
}

}  // namespace sinter::models
