#include "models/weights.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/threads.h"

namespace sinter::models {

std::vector<int64_t> part_shape(const spec::ParameterSpec& info, const spec::ParameterPart& part) {
  if (info.shape.rank() == 1) return {part.rows};
  const int64_t columns = info.shape[-1];
  return part.transposed ? std::vector<int64_t>{columns, part.rows} : std::vector<int64_t>{part.rows, columns};
}

namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;  // of a copy to a device by one of several threads

// Where element (row, column) of a part stands: in the stored tensor, and in the part on disk.
template <class Visit>
void visit_part(const spec::ParameterSpec& info, const spec::ParameterPart& part, Visit visit) {
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

// One part of a stored tensor to its file, a piece at a time: little memory beside the training's, none of it new.
void write_part(io::TensorFolderWriter& writer, const spec::ParameterSpec& info, const spec::ParameterPart& part,
                std::span<const float> stored, DType dtype) {
  constexpr int64_t kPieceElements = 1 << 18;
  const bool is_vector = info.shape.rank() == 1;
  const int64_t columns = is_vector ? 1 : info.shape[-1], stack_rows = is_vector ? info.shape[0] : info.shape[-2];
  const int64_t first = (part.expert < 0 ? 0 : part.expert * stack_rows) + part.row_begin;
  const float* source = stored.data() + first * columns;
  const int64_t rows = part.transposed ? columns : part.rows, width = part.transposed ? part.rows : columns;  // on disk
  const int64_t step = std::max<int64_t>(1, kPieceElements / width);
  std::vector<float> turned(part.transposed ? static_cast<size_t>(std::min(step, rows) * width) : 0);
  std::vector<std::byte> bytes;
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t end = std::min(begin + step, rows);
    const auto count = static_cast<size_t>((end - begin) * width);
    const float* piece = source + begin * width;
    if (part.transposed) {
      for (int64_t r = 0; r < width; ++r) {
        for (int64_t c = begin; c < end; ++c)
          turned[static_cast<size_t>((c - begin) * width + r)] = source[r * columns + c];
      }
      piece = turned.data();
    }
    if (dtype == DType::f32) {
      writer.write(part.hf_name, std::as_bytes(std::span(piece, count)));
    } else {
      bytes.resize(count * base::dtype_bytes(dtype));
      base::convert_elements(DType::f32, piece, dtype, bytes.data(), count);
      writer.write(part.hf_name, bytes);
    }
  }
}

constexpr std::string_view kHeadName = "lm_head.weight";

bool is_known_extra(const std::string& name, const spec::ModelSpec& spec) {
  auto ends_with = [&](std::string_view suffix) {
    return name.size() >= suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
  };
  return ends_with("rotary_emb.inv_freq") || ends_with(".attn.bias") || ends_with(".attn.masked_bias") ||
         (spec.tied_head && name == kHeadName);
}

// GPT-2's first published folders leave it out.
constexpr std::string_view kOldPrefix = "transformer.";
const io::TensorEntry& find_part(const io::TensorFolder& folder, const spec::ParameterPart& part) {
  if (!folder.find(part.hf_name) && part.hf_name.starts_with(kOldPrefix)) {
    if (const io::TensorEntry* entry = folder.find(part.hf_name.substr(kOldPrefix.size()))) return *entry;
  }
  return folder.get(part.hf_name);
}

// A folder that ties head and embedding may hold the head as well, with the same values.
void check_tied_head(const io::TensorFolder& folder, const spec::ModelSpec& spec) {
  const io::TensorEntry* head = spec.tied_head ? folder.find(std::string(kHeadName)) : nullptr;
  if (!head) return;
  for (const spec::ParameterSpec& p : spec::make_parameter_table(spec)) {
    if (p.role != spec::ParameterRole::embedding || p.parts.size() != 1) continue;
    const io::TensorEntry& table = find_part(folder, p.parts[0]);
    SINTER_CHECK(head->dtype == table.dtype && std::ranges::equal(head->bytes, table.bytes),
                 "'{}': tie_word_embeddings is true, but '{}' and '{}' hold different values; set it to false to use "
                 "both, or take "
                 "'{}' out",
                 folder.path(), head->name, table.name, head->name);
  }
}

const io::TensorEntry& checked_part(const spec::ParameterSpec& info, const spec::ParameterPart& part,
                                    const io::TensorFolder& folder) {
  const io::TensorEntry& entry = find_part(folder, part);
  const std::vector<int64_t> expected = part_shape(info, part);
  SINTER_CHECK(entry.shape == expected, "'{}': tensor '{}' has shape {}; config.json makes it {}", folder.path(),
               entry.name, io::shape_to_string(entry.shape), io::shape_to_string(expected));
  SINTER_CHECK(base::is_floating(entry.dtype), "'{}': tensor '{}' is {}; expected f32, bf16, f16 or f64", folder.path(),
               entry.name, base::dtype_name(entry.dtype));
  return entry;
}

void convert_entry(const io::TensorEntry& entry, DType to, std::byte* destination) {
  const auto from_bytes = static_cast<int64_t>(base::dtype_bytes(entry.dtype));
  const auto to_bytes = static_cast<int64_t>(base::dtype_bytes(to));
  base::parallel_for(entry.num_elements(), 1 << 16, [&](int64_t begin, int64_t end) {
    base::convert_elements(entry.dtype, entry.bytes.data() + begin * from_bytes, to, destination + begin * to_bytes,
                           static_cast<size_t>(end - begin));
  });
}

// The same to another device: converted a piece at a time, or as the file has it.
void send_entry(const io::TensorEntry& entry, DType to, std::byte* destination, core::DeviceRuntime& device) {
  if (entry.dtype == to) return send_bytes(device, destination, entry.bytes.data(), entry.bytes.size());
  const auto from_bytes = static_cast<int64_t>(base::dtype_bytes(entry.dtype));
  const auto to_bytes = static_cast<int64_t>(base::dtype_bytes(to));
  base::parallel_for(entry.num_elements(), kPieceBytes / to_bytes, [&](int64_t begin, int64_t end) {
    std::vector<std::byte> piece(static_cast<size_t>((end - begin) * to_bytes));
    base::convert_elements(entry.dtype, entry.bytes.data() + begin * from_bytes, to, piece.data(),
                           static_cast<size_t>(end - begin));
    device.copy_to_device(destination + begin * to_bytes, piece.data(), piece.size(), device.stream());
  });
}

bool is_mappable(const spec::ParameterSpec& info, const io::TensorFolder& folder, DType compute) {
  using Role = spec::ParameterRole;
  if (info.shape.rank() != 2 || info.role == Role::router || info.role == Role::position) return false;
  return std::all_of(info.parts.begin(), info.parts.end(), [&](const spec::ParameterPart& part) {
    const io::TensorEntry& entry = find_part(folder, part);
    const auto address = reinterpret_cast<uintptr_t>(entry.bytes.data());
    return !part.transposed && entry.dtype == compute && address % base::dtype_bytes(compute) == 0;
  });
}

void map_slot(ParameterStore& store, ParameterStore::Slot& slot, const std::shared_ptr<const io::TensorFolder>& mapped,
              std::set<std::string>& used) {
  const int64_t columns = slot.info.shape[-1];
  auto blocks = std::make_shared<core::WeightBlocks>();
  *blocks = {.experts = 1, .rows = slot.info.shape[-2], .columns = columns, .parts = {}, .file = mapped};
  for (const spec::ParameterPart& part : slot.info.parts) {
    const io::TensorEntry& entry = checked_part(slot.info, part, *mapped);
    used.insert(entry.name);
    core::WeightPart rows{.rows = part.rows};
    rows.data = Tensor::view_of(const_cast<std::byte*>(entry.bytes.data()), {1, part.rows, columns}, entry.dtype,
                                store.options().device);
    blocks->parts.push_back(std::move(rows));
  }
  store.set_blocks(slot, std::move(blocks));
}

}  // namespace

bool can_load_in_place(const ParameterStore& store, const ParameterStore::Slot& slot, const io::TensorFolder& folder) {
  const Tensor& data = slot.parameter.weight.data;
  const Tensor& master = slot.parameter.master;
  if (slot.is_apart || store.options().device.kind == core::DeviceKind::shapes) return false;
  if (store.options().division.is_on()) return false;  // pieces of masters and weights
  int64_t held = 0;
  for (const spec::Box& box : slot.boxes) held += box.begin == box.local ? box.num_elements() : 0;
  if (slot.global_shape != slot.info.shape || held != slot.info.num_elements()) return false;
  if (master && master.raw() != data.raw()) return false;
  return std::all_of(slot.info.parts.begin(), slot.info.parts.end(), [&](const spec::ParameterPart& part) {
    // f64 is rounded by way of f32 elsewhere; the same numbers here.
    return !part.transposed && (find_part(folder, part).dtype != DType::f64 || data.dtype() == DType::f32);
  });
}

void send_bytes(core::DeviceRuntime& device, void* to, const void* from, size_t bytes) {
  base::parallel_for(static_cast<int64_t>(bytes), kPieceBytes, [&](int64_t begin, int64_t end) {
    device.copy_to_device(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                          static_cast<size_t>(end - begin), device.stream());
  });
}

std::set<std::string> mappable_tensors(const spec::ModelSpec& spec, const io::TensorFolder& folder, DType compute) {
  std::set<std::string> names;
  for (const spec::ParameterSpec& info : spec::make_parameter_table(spec)) {
    if (is_mappable(info, folder, compute)) names.insert(info.name);
  }
  return names;
}

const io::TensorEntry& find_plain_part(const spec::ParameterPart& part, const io::TensorFolder& folder) {
  return find_part(folder, part);
}

std::vector<float> read_plain_part(const spec::ParameterSpec& info, const spec::ParameterPart& part,
                                   const io::TensorFolder& folder) {
  const io::TensorEntry& entry = checked_part(info, part, folder);
  const int64_t columns = info.shape.rank() == 1 ? 1 : info.shape[-1];
  std::vector<float> values(static_cast<size_t>(entry.num_elements()));
  convert_entry(entry, DType::f32, reinterpret_cast<std::byte*>(values.data()));
  if (!part.transposed) return values;
  std::vector<float> turned(values.size());
  base::parallel_for(part.rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t c = 0; c < columns; ++c)
        turned[static_cast<size_t>(r * columns + c)] = values[static_cast<size_t>(c * part.rows + r)];
    }
  });
  return turned;
}

void load_plain_slot(ParameterStore& store, ParameterStore::Slot& slot, const io::TensorFolder& folder,
                     std::set<std::string>& used) {
  spec::ParameterSpec info = slot.info;  // of which this store may hold boxes
  info.shape = slot.global_shape;
  const bool is_vector = info.shape.rank() == 1;
  const int64_t columns = is_vector ? 1 : info.shape[-1], stack_rows = is_vector ? info.shape[0] : info.shape[-2];
  const bool is_in_place = can_load_in_place(store, slot, folder);
  std::vector<float> values(is_in_place ? 0 : static_cast<size_t>(info.num_elements()));
  for (const spec::ParameterPart& part : info.parts) {
    used.insert(find_part(folder, part).name);
    const int64_t first = (part.expert < 0 ? 0 : part.expert * stack_rows) + part.row_begin;
    if (is_in_place) {
      const Tensor& data = slot.parameter.weight.data;
      const auto offset = static_cast<size_t>(first * columns) * base::dtype_bytes(data.dtype());
      auto* to = static_cast<std::byte*>(data.raw()) + offset;
      const core::Device device = store.options().device;
      if (device.kind == core::DeviceKind::cpu) {
        convert_entry(checked_part(info, part, folder), data.dtype(), to);
      } else {
        send_entry(checked_part(info, part, folder), data.dtype(), to, core::runtime(device));
      }
      continue;
    }
    const std::vector<float> rows = read_plain_part(info, part, folder);
    std::copy(rows.begin(), rows.end(), values.begin() + first * columns);
  }
  if (is_in_place) {
    ++slot.parameter.weight.version;
  } else {
    store.set_global(slot, values);
  }
}

namespace {

std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }

}  // namespace

void mark_elsewhere(ParameterStore& store, const spec::ModelSpec& spec, const io::TensorFolder& folder,
                    std::set<std::string>& used) {
  std::set<std::string> modules;  // up to the last point of their tensors' names
  for (const spec::ParameterSpec& p : spec::make_parameter_table(spec)) {
    if (store.find(p.name)) continue;
    for (const spec::ParameterPart& part : p.parts) modules.insert(module_of(part.hf_name));
  }
  for (const io::TensorEntry& entry : folder.entries()) {
    const std::string module = module_of(entry.name);
    if (modules.contains(module) || modules.contains(std::string(kOldPrefix) + module)) used.insert(entry.name);
  }
}

void check_all_used(const io::TensorFolder& folder, const spec::ModelSpec& spec, const std::set<std::string>& used) {
  for (const io::TensorEntry& entry : folder.entries()) {
    SINTER_CHECK(used.count(entry.name) || is_known_extra(entry.name, spec),
                 "'{}': tensor '{}' has no place in this model; config.json does not describe these weights",
                 folder.path(), entry.name);
  }
  check_tied_head(folder, spec);
}

void load_weights(ParameterStore& store, const spec::ModelSpec& spec, const io::TensorFolder& folder,
                  const std::shared_ptr<const io::TensorFolder>& mapped) {
  std::set<std::string> used;
  for (ParameterStore::Slot& slot : store.slots()) {
    if (slot.info.role == spec::ParameterRole::adapter) continue;
    slot.is_apart&& mapped ? map_slot(store, slot, mapped, used) : load_plain_slot(store, slot, folder, used);
  }
  mark_elsewhere(store, spec, folder, used);
  check_all_used(folder, spec, used);
}

std::vector<DiskTensor> split_parts(const spec::ParameterSpec& info, std::span<const float> values) {
  std::vector<DiskTensor> result;
  for (const spec::ParameterPart& part : info.parts) {
    DiskTensor t{part.hf_name, part_shape(info, part), {}};
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

std::vector<float> join_parts(
    const spec::ParameterSpec& info,
    const std::function<std::vector<float>(const spec::ParameterPart& part, const std::vector<int64_t>& shape)>& read) {
  std::vector<float> values(static_cast<size_t>(info.num_elements()));
  for (const spec::ParameterPart& part : info.parts) {
    const std::vector<float> disk = read(part, part_shape(info, part));
    visit_part(info, part, [&](int64_t stored, int64_t on_disk) {
      values[static_cast<size_t>(stored)] = disk[static_cast<size_t>(on_disk)];
    });
  }
  return values;
}

void save_weights(const std::vector<spec::ParameterSpec>& table, const std::vector<Tensor>& values,
                  const std::string& folder, DType dtype) {
  SINTER_CHECK(table.size() == values.size(), "[save_weights] {} tensors for {} places", values.size(), table.size());
  save_weights(
      table, [&](size_t i) { return values[i]; }, folder, dtype);
}

void save_weights(const std::vector<spec::ParameterSpec>& table, const std::function<Tensor(size_t i)>& values,
                  const std::string& folder, DType dtype) {
  io::TensorFolderWriter writer(folder);
  for (const spec::ParameterSpec& info : table) {
    for (const spec::ParameterPart& part : info.parts) writer.declare(part.hf_name, dtype, part_shape(info, part));
  }
  std::vector<float> scratch;
  for (size_t i = 0; i < table.size(); ++i) {
    const Tensor tensor = values(i);
    const std::span<const float> stored = core::host_floats(tensor, scratch);
    for (const spec::ParameterPart& part : table[i].parts) write_part(writer, table[i], part, stored, dtype);
  }
  writer.commit();
}

void save_weights(const ParameterStore& store, const std::string& folder, DType dtype) {
  std::vector<spec::ParameterSpec> table;
  std::vector<Tensor> values;
  for (const ParameterStore::Slot& slot : store.slots()) {
    table.push_back(slot.info);
    values.push_back(slot.parameter.master ? slot.parameter.master : slot.parameter.weight.data);
  }
  save_weights(table, values, folder, dtype);
}

}  // namespace sinter::models
