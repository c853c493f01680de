#include <algorithm>
#include <cstring>

#include "base/blocks.h"
#include "base/error.h"
#include "base/threads.h"
#include "models/gguf.h"
#include "models/weights.h"
#include "spec/families.h"

namespace sinter::models {
namespace {

using core::WeightFormat;

// A piece of a stored tensor and the tensor of the file that holds it: whole, or the stack of all experts.
struct FilePart {
  const io::GgufTensor* tensor = nullptr;
  int64_t experts = 1, rows = 0, columns = 0;
  int64_t paired_heads = 0;  // whose rows are pairs there, or 0
};

std::string text_of(std::span<const int64_t> shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + ")";
}

// The parts of a parameter in the file, of a stack of experts one for each projection.
std::vector<FilePart> parts_of(const spec::ParameterSpec& info, const spec::ModelSpec& spec, const io::GgufFile& file) {
  const bool is_vector = info.shape.rank() == 1;
  const int64_t E = info.shape.rank() == 3 ? info.shape[0] : 1;
  std::vector<FilePart> parts;
  for (const spec::ParameterPart& part : info.parts) {
    if (part.expert > 0) continue;
    const spec::GgufPlace place = spec::gguf_place(part);
    const io::GgufTensor& tensor = file.tensor(place.name);
    const int64_t columns = is_vector ? 1 : info.shape[-1];
    std::vector<int64_t> expected{part.rows};
    if (!is_vector) expected.push_back(columns);
    if (E > 1 || part.expert >= 0) expected.insert(expected.begin(), E);
    SINTER_CHECK(tensor.shape == expected, "'{}': tensor '{}' has the shape {}; the metadata make it {}", file.path(),
                 tensor.name, text_of(tensor.shape), text_of(expected));
    SINTER_CHECK(tensor.format != WeightFormat::plain || base::is_floating(tensor.dtype),
                 "'{}': tensor '{}' is {}; expected numbers of a weight", file.path(), tensor.name, tensor.type_name());
    SINTER_CHECK(base::info_of(tensor.format).can_decode,
                 "'{}': tensor '{}' is in {}, which is not read; convert the model to another type, for example q4_k_m",
                 file.path(), tensor.name, tensor.type_name());
    parts.push_back({&tensor, E, part.rows, columns, spec::paired_heads_in_gguf(spec, part)});
  }
  return parts;
}

bool stands_apart(const spec::ParameterSpec& info, const std::vector<FilePart>& parts) {
  if (info.shape.rank() < 2 || info.role == spec::ParameterRole::router || info.role == spec::ParameterRole::position)
    return false;
  return std::any_of(parts.begin(), parts.end(),
                     [](const FilePart& part) { return part.tensor->format != WeightFormat::plain; });
}

int64_t row_bytes_of(const FilePart& part) {
  const io::GgufTensor& t = *part.tensor;
  return t.format == WeightFormat::plain ? part.columns * static_cast<int64_t>(base::dtype_bytes(t.dtype))
                                         : base::bytes_of(t.format, part.columns);
}

// Row r of a part (of all experts) in the file.
const std::byte* row_in_file(const FilePart& part, int64_t r) {
  if (part.paired_heads > 0) {
    const int64_t head_dim = part.rows / part.paired_heads;
    r = r / head_dim * head_dim + paired_row(r % head_dim, head_dim);
  }
  return part.tensor->bytes.data() + r * row_bytes_of(part);
}

// The rows as a weight: where they lie, or copied when their order or the device asks for it.
core::WeightPart weight_part(const FilePart& part, const core::Device& device, const io::GgufFile& file) {
  const io::GgufTensor& tensor = *part.tensor;
  const bool is_plain = tensor.format == WeightFormat::plain;
  const int64_t row_bytes = row_bytes_of(part), rows = part.experts * part.rows;
  const base::Shape shape =
      is_plain ? base::Shape{part.experts, part.rows, part.columns} : base::Shape{part.experts, part.rows * row_bytes};
  const DType dtype = is_plain ? tensor.dtype : DType::u8;
  core::WeightPart result{.format = tensor.format, .rows = part.rows};
  core::DeviceRuntime& runtime = core::runtime(device);
  const bool is_on_cpu = device.kind == core::DeviceKind::cpu;
  if (part.paired_heads == 0 && is_on_cpu) {
    result.data = Tensor::view_of(const_cast<std::byte*>(tensor.bytes.data()), shape, dtype, device);
    return result;
  }
  result.data = Tensor(runtime.allocator(), shape, dtype);
  if (part.paired_heads == 0) {
    send_bytes(runtime, result.data.raw(), tensor.bytes.data(), tensor.bytes.size());
  } else {
    std::vector<std::byte> host(is_on_cpu ? 0 : tensor.bytes.size());
    std::byte* to = is_on_cpu ? static_cast<std::byte*>(result.data.raw()) : host.data();
    base::parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        std::memcpy(to + r * row_bytes, row_in_file(part, r), static_cast<size_t>(row_bytes));
    });
    if (!is_on_cpu) send_bytes(runtime, result.data.raw(), host.data(), host.size());
  }
  runtime.synchronize(runtime.stream());
  file.drop_pages(tensor.bytes);
  return result;
}

// The numbers of a stored tensor.
std::vector<float> read_values(const spec::ParameterSpec& info, const std::vector<FilePart>& parts,
                               const io::GgufFile& file) {
  std::vector<float> values(static_cast<size_t>(info.num_elements()));
  const int64_t stack_rows = info.shape.rank() == 1 ? info.shape[0] : info.shape[-2];
  int64_t first = 0;
  for (const FilePart& part : parts) {
    const io::GgufTensor& tensor = *part.tensor;
    auto read = [&](const std::byte* from, float* to, int64_t count) {
      if (tensor.format == WeightFormat::plain) {
        base::convert_elements(tensor.dtype, from, DType::f32, to, static_cast<size_t>(count));
      } else {
        base::dequantize_blocks(tensor.format, from, nullptr, to, count);
      }
    };
    if (info.shape.rank() == 1) {  // one row in the file, perhaps of pairs
      std::vector<float> row(static_cast<size_t>(part.rows));
      read(tensor.bytes.data(), row.data(), part.rows);
      for (int64_t r = 0; r < part.rows; ++r) {
        int64_t from = r;
        if (part.paired_heads > 0) {
          const int64_t head_dim = part.rows / part.paired_heads;
          from = r / head_dim * head_dim + paired_row(r % head_dim, head_dim);
        }
        values[static_cast<size_t>(first + r)] = row[static_cast<size_t>(from)];
      }
    } else {
      base::parallel_for(part.experts * part.rows, 16, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t to = r / part.rows * stack_rows + first + r % part.rows;
          read(row_in_file(part, r), values.data() + to * part.columns, part.columns);
        }
      });
    }
    first += part.rows;
    file.drop_pages(tensor.bytes);
  }
  return values;
}

void refuse_unknown_tensors(const std::vector<spec::ParameterSpec>& table, const spec::ModelSpec& spec,
                            const io::GgufFile& file) {
  std::set<std::string> known{"rope_freqs.weight"};
  if (spec.tied_head) known.insert("output.weight");
  for (const spec::ParameterSpec& info : table) {
    for (const spec::ParameterPart& part : info.parts) known.insert(spec::gguf_place(part).name);
  }
  for (const io::GgufTensor& tensor : file.tensors()) {
    SINTER_CHECK(known.contains(tensor.name), "'{}': tensor '{}' has no place in a model of architecture {}",
                 file.path(), tensor.name, spec::info_of(spec.family).gguf_architecture);
  }
}

}  // namespace

std::set<std::string> gguf_tensors_apart(const spec::ModelSpec& spec, const io::GgufFile& file) {
  const std::vector<spec::ParameterSpec> table = spec::make_parameter_table(spec);
  refuse_unknown_tensors(table, spec, file);
  std::set<std::string> names;
  for (const spec::ParameterSpec& info : table) {
    if (stands_apart(info, parts_of(info, spec, file))) names.insert(info.name);
  }
  return names;
}

std::vector<float> read_gguf_part(const io::GgufFile& file, const spec::ModelSpec& spec,
                                  const spec::ParameterSpec& info, const spec::ParameterPart& part) {
  // The same rows of expert 0 name the tensor; those of another expert lie further on in it.
  for (const FilePart& whole : parts_of(info, spec, file)) {
    if (whole.tensor->name != spec::gguf_place(part).name) continue;
    FilePart one = whole;
    spec::ParameterSpec alone = info;
    alone.shape = info.shape.rank() == 1 ? base::Shape{part.rows} : base::Shape{part.rows, whole.columns};
    one.experts = 1;
    io::GgufTensor slice = *whole.tensor;
    if (part.expert >= 0) {
      const auto bytes = static_cast<size_t>(row_bytes_of(whole) * whole.rows);
      slice.bytes = slice.bytes.subspan(static_cast<size_t>(part.expert) * bytes, bytes);
    }
    one.tensor = &slice;
    return read_values(alone, {one}, file);
  }
  base::fail("'{}' has no tensor '{}'", file.path(), part.hf_name);
}

void load_gguf_weights(ParameterStore& store, const spec::ModelSpec& spec, std::shared_ptr<const io::GgufFile> file) {
  for (ParameterStore::Slot& slot : store.slots()) {
    const std::vector<FilePart> parts = parts_of(slot.info, spec, *file);
    if (!slot.is_apart) {
      store.set(slot, read_values(slot.info, parts, *file));
      continue;
    }
    auto blocks = std::make_shared<core::WeightBlocks>();
    *blocks = {.experts = parts[0].experts, .rows = slot.info.shape[-2], .columns = slot.info.shape[-1], .file = file};
    for (const FilePart& part : parts) blocks->parts.push_back(weight_part(part, store.options().device, *file));
    store.set_blocks(slot, std::move(blocks));
  }
}

}  // namespace sinter::models
