// Reading checkpoints: index.json of versions 1 and 2, and of the files only what a rank's tensors need.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "train/checkpoint.h"
#include "train/checkpoint_boxes.h"

namespace sinter::train {
namespace {

namespace fs = std::filesystem;
using base::Shape;
using nlohmann::json;

// Reads keys of index.json with errors that name them.
class Reader {
 public:
  Reader(const json& object, std::string where) : object_(object), where_(std::move(where)) {
    SINTER_CHECK(object.is_object(), "{} is not a JSON object", where_);
  }
  const json& at(const char* key) const {
    auto it = object_.find(key);
    SINTER_CHECK(it != object_.end(), "{}: key '{}' is missing", where_, key);
    return *it;
  }
  bool has(const char* key) const { return object_.contains(key); }
  int64_t count(const char* key) const {
    const json& v = at(key);
    SINTER_CHECK(v.is_number_integer() && v >= 0 && v <= int64_t{1} << 56, "{}: '{}' is not a count", where_, key);
    return v.get<int64_t>();
  }
  std::string text(const char* key) const {
    SINTER_CHECK(at(key).is_string(), "{}: '{}' is not a string", where_, key);
    return at(key).get<std::string>();
  }
  const json& list(const char* key) const {
    SINTER_CHECK(at(key).is_array(), "{}: '{}' is not a list", where_, key);
    return at(key);
  }
  std::vector<std::string> texts(const char* key) const {
    std::vector<std::string> out;
    for (const json& v : list(key)) {
      SINTER_CHECK(v.is_string(), "{}: '{}' holds something that is not a string", where_, key);
      out.push_back(v.get<std::string>());
    }
    return out;
  }
  std::vector<double> numbers(const char* key) const {
    std::vector<double> out;
    for (const json& v : list(key)) {
      SINTER_CHECK(v.is_number(), "{}: '{}' holds something that is not a number", where_, key);
      out.push_back(v.get<double>());
    }
    return out;
  }

 private:
  const json& object_;
  std::string where_;
};

uint64_t parse_hash(const std::string& text, const std::string& where) {
  SINTER_CHECK(text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos,
               "{}: hash '{}' is not 16 hex digits", where, text);
  return std::stoull(text, nullptr, 16);
}

std::string parse_file(const std::string& file, const std::string& where) {
  SINTER_CHECK(file.find('/') == std::string::npos && file.size() < 200, "{}: file '{}' is not in the state folder",
               where, file);
  return file;
}

Shape parse_shape(const json& list, const std::string& where) {
  Shape shape;
  int64_t elements = 1;
  SINTER_CHECK(list.size() <= Shape::kMaxRank, "{}: shape has {} axes; at most {}", where, list.size(),
               Shape::kMaxRank);
  for (const json& axis : list) {
    SINTER_CHECK(axis.is_number_integer() && axis > 0 && axis <= int64_t{1} << 40, "{}: shape is not a list of sizes",
                 where);
    const auto size = axis.get<int64_t>();
    SINTER_CHECK(elements <= (int64_t{1} << 48) / size, "{}: shape is too large", where);
    elements *= size;
    shape.push_back(size);
  }
  if (shape.rank() == 0) shape.push_back(1);
  return shape;
}

// One list [begin..., size...] inside of `shape`.
StateBox parse_box(const json& list, const Shape& shape, const std::string& where) {
  const auto rank = static_cast<size_t>(shape.rank());
  SINTER_CHECK(list.is_array() && list.size() == 2 * rank, "{}: a box is not a list of {} begins and {} sizes", where,
               rank, rank);
  StateBox box{shape, shape};
  for (size_t axis = 0; axis < rank; ++axis) {
    const json &begin = list[axis], &size = list[rank + axis];
    const int64_t whole = shape[static_cast<int>(axis)];
    SINTER_CHECK(begin.is_number_integer() && size.is_number_integer() && begin >= 0 && size > 0 && begin <= whole &&
                     size <= whole - begin.get<int64_t>(),
                 "{}: a box reaches outside of {}", where, shape.to_string());
    box.begin.set(static_cast<int>(axis), begin.get<int64_t>());
    box.size.set(static_cast<int>(axis), size.get<int64_t>());
  }
  return box;
}

// Version 1: stretches of the flattened tensor, in order, each with one hash.
int64_t parse_stretches(const Reader& entry, const std::string& where, StateEntry& out) {
  int64_t next = 0;
  for (const json& item : entry.list("pieces")) {
    const Reader piece(item, where);
    const int64_t begin = piece.count("begin"), count = piece.count("count");
    SINTER_CHECK(begin == next, "{}: a piece begins at {}, expected {}", where, begin, next);
    SINTER_CHECK(count <= out.shape.num_elements() - begin, "{}: a piece reaches past the end", where);
    next += count;
    const uint64_t hash = parse_hash(piece.text("hash"), where);
    const std::string file = parse_file(piece.text("file"), where);
    if (count > 0) out.parts.push_back({file, boxes_of_stretch(out.shape, begin, count), {hash}, 0});
  }
  return next;
}

int64_t parse_parts(const Reader& entry, const std::string& where, StateEntry& out) {
  int64_t elements = 0;
  for (const json& item : entry.list("parts")) {
    const Reader part(item, where);
    StatePart p{parse_file(part.text("file"), where), {}, {}, kStateChunkBytes};
    for (const json& box : part.list("boxes")) {
      p.boxes.push_back(parse_box(box, out.shape, where));
      elements += p.boxes.back().num_elements();
      SINTER_CHECK(elements <= out.shape.num_elements(), "{}: pieces hold more than {}", where, out.shape.to_string());
    }
    for (const std::string& hash : part.texts("hashes")) p.hashes.push_back(parse_hash(hash, where));
    const int64_t bytes = 4 * p.num_elements();
    SINTER_CHECK(static_cast<int64_t>(p.hashes.size()) == (bytes + kStateChunkBytes - 1) / kStateChunkBytes,
                 "{}: {} hashes for {} bytes in '{}'", where, p.hashes.size(), bytes, p.file);
    out.parts.push_back(std::move(p));
  }
  return elements;
}

StateEntry parse_entry(const json& value, const std::string& origin, int64_t version) {
  const Reader entry(value, origin + ": a tensor");
  StateEntry out{entry.text("kind"), entry.text("name"), {}, {}};
  const std::string where = fmt::format("{}: tensor '{}'", origin, state_key(out.kind, out.name));
  out.shape = parse_shape(entry.list("shape"), where);
  const int64_t elements = version == 1 ? parse_stretches(entry, where, out) : parse_parts(entry, where, out);
  SINTER_CHECK(elements == out.shape.num_elements(), "{}: pieces hold {} of {} elements", where, elements,
               out.shape.num_elements());
  return out;
}

// The files of a state folder, opened when something in them is needed, with every chunk checked once.
class StateFiles {
 public:
  explicit StateFiles(std::string folder) : folder_(std::move(folder)) {}

  // Elements [begin, begin + count) of what a part stores.
  const float* read(const std::string& key, const StatePart& part, int64_t begin, int64_t count) {
    const io::SafetensorsFile& file = open(part.file);
    const io::TensorEntry* stored = file.find(key);
    SINTER_CHECK(stored && stored->dtype == base::DType::f32 && stored->num_elements() == part.num_elements(),
                 "checkpoint file '{}' does not hold {} elements of '{}'", file.path(), part.num_elements(), key);
    const int64_t chunk = part.chunk_bytes ? part.chunk_bytes : std::max<int64_t>(4 * part.num_elements(), 1);
    for (int64_t c = 4 * begin / chunk; c <= (4 * (begin + count) - 1) / chunk; ++c) {
      if (!checked_.insert({part.file, key, c}).second) continue;
      const auto at = static_cast<size_t>(c * chunk);
      const auto bytes = stored->bytes.subspan(at, std::min(static_cast<size_t>(chunk), stored->bytes.size() - at));
      SINTER_CHECK(base::hash_bytes(bytes) == part.hashes[static_cast<size_t>(c)],
                   "checkpoint file '{}': '{}' is damaged (its hash does not fit); resume from another step",
                   file.path(), key);
    }
    return reinterpret_cast<const float*>(stored->bytes.data()) + begin;
  }

 private:
  const io::SafetensorsFile& open(const std::string& name) {
    std::unique_ptr<io::SafetensorsFile>& file = files_[name];
    if (!file) {
      const std::string path = folder_ + "/state/" + name;
      SINTER_CHECK(fs::exists(path), "checkpoint '{}' is not whole: '{}' is missing; resume from another step", folder_,
                   path);
      file = std::make_unique<io::SafetensorsFile>(path);
    }
    return *file;
  }
  std::string folder_;
  std::map<std::string, std::unique_ptr<io::SafetensorsFile>> files_;
  std::set<std::tuple<std::string, std::string, int64_t>> checked_;
};

// The values of one rank's tensor from whatever pieces hold them.
std::vector<float> read_values(const StateTensor& tensor, const StateEntry& entry, StateFiles& files,
                               const std::string& folder) {
  const std::string key = state_key(tensor.kind, tensor.name);
  std::vector<float> values(static_cast<size_t>(tensor.values.num_elements()), 0.0f);
  int64_t wanted = 0, found = 0;
  for (const HeldPiece& held : held_pieces(tensor, 0, tensor.values.num_elements(), false)) {
    wanted += held.box.num_elements();
    for (const StatePart& part : entry.parts) {
      int64_t stored_at = 0;
      for (const StateBox& stored : part.boxes) {
        if (const std::optional<StateBox> common = overlap(stored, held.box)) {
          visit_rows(*common, stored, held.box, [&](int64_t from, int64_t to, int64_t count) {
            std::copy_n(files.read(key, part, stored_at + from, count), count, values.begin() + held.at + to);
            found += count;
          });
        }
        stored_at += stored.num_elements();
      }
    }
  }
  SINTER_CHECK(found == wanted, "checkpoint '{}': '{}' has {} of the {} elements that this rank needs", folder, key,
               found, wanted);
  return values;
}

StateIndex load_index(const std::string& folder) {
  const std::string path = folder + "/state/index.json";
  SINTER_CHECK(fs::exists(path), "'{}' is not a checkpoint: there is no state/index.json in it", folder);
  return parse_state_index(base::read_file(path), path);
}

}  // namespace

StateIndex parse_state_index(std::string_view text, const std::string& origin) {
  const json value = base::parse_json(text, origin);
  Reader root(value, "'" + origin + "'");
  SINTER_CHECK(root.text("format") == "sinter state", "'{}' is not a checkpoint index", origin);
  const int64_t version = root.count("version");
  SINTER_CHECK(version == 1 || version == 2, "'{}': version {}; this program reads versions 1 and 2", origin, version);
  StateIndex index;
  index.run.step = root.count("step");
  index.run.updates = root.count("updates");
  index.run.tokens = root.count("tokens");
  index.run.guard = root.numbers("guard");
  index.run.noise_scale = root.numbers("noise_scale");
  if (root.has("validation")) index.run.validation = root.numbers("validation");
  if (root.has("loss_scale")) index.run.loss_scale = root.numbers("loss_scale");  // not in older ones
  if (root.has("kernel_choices")) index.run.kernel_choices = root.texts("kernel_choices");
  if (root.has("tokenizer")) index.run.tokenizer = root.text("tokenizer");
  if (root.has("data")) index.run.data = root.text("data");
  if (root.has("source")) index.run.source = root.text("source");
  index.run.recipe = root.text("recipe");
  index.ranks = root.count("ranks");
  for (const json& entry : root.list("tensors"))
    index.entries.push_back(parse_entry(entry, "'" + origin + "'", version));
  return index;
}

RunState load_run_state(const std::string& folder) { return load_index(folder).run; }

bool has_state_tensor(const std::string& folder, const std::string& kind, const std::string& name) {
  const StateIndex index = load_index(folder);
  return std::any_of(index.entries.begin(), index.entries.end(),
                     [&](const StateEntry& entry) { return entry.kind == kind && entry.name == name; });
}

struct StateReader::Files {
  Files(const std::string& folder) : index(load_index(folder)), files(folder) {
    for (const StateEntry& entry : index.entries) entries[state_key(entry.kind, entry.name)] = &entry;
  }
  const StateIndex index;
  std::map<std::string, const StateEntry*> entries;
  StateFiles files;
};

StateReader::StateReader(const std::string& folder) : folder_(folder), files_(std::make_unique<Files>(folder)) {}
StateReader::~StateReader() = default;
const RunState& StateReader::run() const { return files_->index.run; }

void StateReader::read(const StateTensor& t) {
  const std::string key = state_key(t.kind, t.name);
  auto found = files_->entries.find(key);
  SINTER_CHECK(found != files_->entries.end(),
               "checkpoint '{}' has no '{}': it was made with another model or optimizer", folder_, key);
  const StateEntry& entry = *found->second;
  SINTER_CHECK(entry.shape == global_shape(t), "checkpoint '{}': '{}' has shape {}, this model's is {}", folder_, key,
               entry.shape.to_string(), global_shape(t).to_string());
  const std::vector<float> values = read_values(t, entry, files_->files, folder_);
  core::DeviceRuntime& device = core::runtime(t.values.device());
  // Exact where the tensor had this format when it was stored; a recipe may have changed it since.
  std::vector<std::byte> rounded;
  if (t.values.dtype() != base::DType::f32) {
    rounded.resize(t.values.bytes());
    base::convert_elements(base::DType::f32, values.data(), t.values.dtype(), rounded.data(), values.size());
  }
  const void* source = rounded.empty() ? static_cast<const void*>(values.data()) : rounded.data();
  device.copy_to_device(t.values.raw(), source, t.values.bytes(), device.stream());
  device.synchronize(device.stream());
}

RunState load_checkpoint(const std::string& folder, const std::vector<StateTensor>& tensors) {
  StateReader reader(folder);
  for (const StateTensor& t : tensors) reader.read(t);
  return reader.run();
}

}  // namespace sinter::train
