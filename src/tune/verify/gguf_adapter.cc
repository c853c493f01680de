#include "tune/verify/gguf_adapter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "core/host_batch.h"
#include "kernels/table.h"
#include "models/part_reader.h"
#include "models/transformer.h"
#include "tune/adapter/gguf_adapter.h"

namespace sinter::tune {
namespace {

namespace fs = std::filesystem;

constexpr double kLimit = 2e-4;  // logits of trained models, whose deviation is 5 to 7

// The base's file by its name, in a folder beside this one; "": none.
std::string find_base(const fs::path& folder, const std::string& name) {
  const fs::path above = fs::weakly_canonical(folder).parent_path();
  for (fs::recursive_directory_iterator it(above), end; it != end; ++it) {
    if (it.depth() >= 2) it.disable_recursion_pending();
    if (it->path().filename() == name) return it->path().string();
  }
  return "";
}

// The base in plain numbers with the adapter beside it, at a scale of the user's.
struct Adapted {
  Adapted(const std::string& base, const std::string& adapter_file, double scale) : reader(base) {
    GgufAdapter adapter = read_gguf_adapter(adapter_file, reader.spec());
    adapter.config.adapter.alpha *= scale;
    store = std::make_unique<models::ParameterStore>(
        spec::whole_table(spec::make_adapter_table(reader.spec(), adapter.config.adapter)), models::StoreOptions{});
    for (models::ParameterStore::Slot& slot : store->slots()) {
      if (slot.info.role == spec::ParameterRole::adapter) {
        store->set(slot, adapter.tensors.at(peft_name(slot.info, slot.info.parts[0])));
        continue;
      }
      std::vector<float> values;
      for (const spec::ParameterPart& part : slot.info.parts) {
        const std::vector<float> piece = reader.read(slot.info, part);
        values.insert(values.end(), piece.begin(), piece.end());
      }
      store->set(slot, values);
    }
    transformer = std::make_unique<models::Transformer>(reader.spec(), *store);
  }

  std::vector<float> logits(const std::vector<int32_t>& prompt) const {
    core::HostBatch host;
    host.add_sequence(prompt);
    core::DeviceRuntime& device = core::runtime({});
    const core::RaggedBatch batch = core::upload(device.allocator(), host);
    const ops::Context context{kernels::kernels_for({}), device.stream(), device.allocator(), nullptr};
    return core::to_host_floats(transformer->logits(context, transformer->forward(context, batch, {}).value));
  }

  models::PartReader reader;
  std::unique_ptr<models::ParameterStore> store;
  std::unique_ptr<models::Transformer> transformer;
};

template <class T>
std::vector<T> values_of(const io::TensorEntry& entry) {
  std::vector<T> values(static_cast<size_t>(entry.num_elements()));
  SINTER_CHECK(entry.dtype == base::dtype_of<T>, "tensor '{}' is {}", entry.name, base::dtype_name(entry.dtype));
  std::memcpy(values.data(), entry.bytes.data(), entry.bytes.size());
  return values;
}

}  // namespace

std::vector<std::string> find_gguf_adapters(const std::string& folder) {
  std::vector<std::string> found;
  auto look = [&](const fs::path& path) {
    if (fs::exists(path / "adapter.gguf") && fs::exists(path / "adapter.json") &&
        fs::exists(path / "adapter.safetensors"))
      found.push_back(path.string());
  };
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return found;
  look(folder);
  for (fs::recursive_directory_iterator it(folder, ignored), end; it != end; it.increment(ignored)) {
    if (it->is_directory(ignored)) look(it->path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::vector<eval::VerifyCheck> verify_gguf_adapter(const std::string& folder) {
  const fs::path path(folder);
  const nlohmann::json answers = base::load_json((path / "adapter.json").string());
  const io::SafetensorsFile golden((path / "adapter.safetensors").string());
  const std::string title = path.filename().string();
  std::vector<eval::VerifyCheck> checks;
  for (const auto& [file, unused] : answers.at("answers").items()) {
    const std::string base = find_base(path, file);
    SINTER_CHECK(!base.empty(), "'{}' needs the base '{}', which is not beside it", folder, file);
    const std::string stem = fs::path(file).stem().string(), kind = stem.substr(stem.rfind('.') + 1);
    for (const char* scale : {"1.0", "0.5"}) {
      const Adapted model(base, (path / "adapter.gguf").string(), std::stod(scale));
      for (int k = 0; golden.find(fmt::format("prompt{}", k)); ++k) {
        const io::TensorEntry* entry = golden.find(fmt::format("{}.exact{}_scale{}", kind, k, scale));
        if (!entry) continue;
        const std::vector<float> expected = values_of<float>(*entry),
                                 found = model.logits(values_of<int32_t>(*golden.find(fmt::format("prompt{}", k))));
        SINTER_CHECK(found.size() == expected.size(), "'{}': '{}' has {} elements; the model gives {}", golden.path(),
                     entry->name, expected.size(), found.size());
        double worst = 0;
        for (size_t i = 0; i < found.size(); ++i) {
          const double difference = std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i]));
          worst = difference <= worst ? worst : difference;  // keeps NaN
        }
        checks.push_back({fmt::format("{}: {}, scale {}: logits of prompt {}", title, stem, scale, k),
                          "largest difference", worst, kLimit, ""});
      }
    }
  }
  return checks;
}

}  // namespace sinter::tune
