// Weights between a Hugging Face folder and a ParameterStore, part by part as the parameter table says.
#pragma once
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "io/tensor_folder.h"
#include "models/parameter_store.h"

namespace sinter::models {

// Reads every part of every tensor. Throws base::Error naming a tensor that is missing or has the wrong shape, and for
// tensors in the folder that the model has no place for (known buffers such as rotary_emb.inv_freq are passed over).
// Adapters' tensors are not looked for. Tensors that stand apart become views of the mapped files, which `mapped`
// (the same folder) keeps alive.
void load_weights(ParameterStore& store, const spec::ModelSpec& spec, const io::TensorFolder& folder,
                  const std::shared_ptr<const io::TensorFolder>& mapped = {});

// Matrices that products can read where they are mapped: stored row by row in the compute format.
std::set<std::string> mappable_tensors(const spec::ModelSpec& spec, const io::TensorFolder& folder, DType compute);

// The shape of a part on disk.
std::vector<int64_t> part_shape(const spec::ParameterSpec& info, const spec::ParameterPart& part);

// One tensor of the store from its plain parts; adds the names it read to `used`.
void load_plain_slot(ParameterStore& store, ParameterStore::Slot& slot, const io::TensorFolder& folder,
                     std::set<std::string>& used);
// Whether a slot's rows can go from the file to where they stand: whole, without a master of another format. A large
// model is ready many times sooner so than by way of f32 copies.
bool can_load_in_place(const ParameterStore& store, const ParameterStore::Slot& slot, const io::TensorFolder& folder);
// Adds the tensors of the modules that this store has nothing of: other ranks do.
void mark_elsewhere(ParameterStore& store, const spec::ModelSpec& spec, const io::TensorFolder& folder,
                    std::set<std::string>& used);
// Throws base::Error for a tensor of the folder that is neither used nor known to be of no use.
void check_all_used(const io::TensorFolder& folder, const spec::ModelSpec& spec, const std::set<std::string>& used);

// One plain piece of a stored tensor: where it lies, and its numbers as (rows, columns), or (rows).
const io::TensorEntry& find_plain_part(const spec::ParameterPart& part, const io::TensorFolder& folder);
std::vector<float> read_plain_part(const spec::ParameterSpec& info, const spec::ParameterPart& part,
                                   const io::TensorFolder& folder);

// One stored tensor cut into its parts as they stand on disk.
struct DiskTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};
std::vector<DiskTensor> split_parts(const spec::ParameterSpec& info, std::span<const float> values);

// The other way: a stored tensor from its parts, each given by `read` with the shape it has on disk.
std::vector<float> join_parts(
    const spec::ParameterSpec& info,
    const std::function<std::vector<float>(const spec::ParameterPart& part, const std::vector<int64_t>& shape)>& read);

// Copies from the host to a device's main stream, read by several threads at once. The source may go on return.
void send_bytes(core::DeviceRuntime& device, void* to, const void* from, size_t bytes);

// Writes model.safetensors (or shards) in `dtype`; values[i] are those of table[i], on any device. config.json and
// tokenizer files are the caller's.
void save_weights(const std::vector<spec::ParameterSpec>& table, const std::vector<Tensor>& values,
                  const std::string& folder, DType dtype);
// values(i) is asked for one after the other and kept no longer than it is written.
void save_weights(const std::vector<spec::ParameterSpec>& table, const std::function<Tensor(size_t i)>& values,
                  const std::string& folder, DType dtype);
void save_weights(const ParameterStore& store, const std::string& folder, DType dtype);

}  // namespace sinter::models
