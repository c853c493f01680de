// Collectives between GPUs by NCCL. Implemented in comm/nccl/nccl.cc, or as absent in comm/nccl_absent.cc (chosen by
// CMake).
#pragma once
#include <memory>
#include <string>

#include "comm/communicator.h"

namespace sinter::comm {

bool has_nccl();

// The ranks of `through`, each with a GPU of its own; it carries NCCL's id and must outlive the result, which uses it
// for tensors on the host. Throws base::Error when this program was built without NCCL.
std::unique_ptr<Communicator> make_nccl(Communicator& through, core::Device device);

// Where a GPU sits in its machine ("0000:19:00.0"): the same for ranks that share it, whatever number each knows it by.
std::string gpu_address(core::Device device);

// The group that carries the tensors of a run on `device`, over the ranks of `through`: NCCL where every rank has a GPU
// of its own, else null: `through` then does it (MPI, by copies in pinned memory). Collective; says at level info which
// it is. The result uses `through`, which must outlive it.
std::unique_ptr<Communicator> make_device_group(Communicator& through, core::Device device);

// NCCL's id by a file that all ranks see: rank 0 writes it, the others wait for it up to `seconds`. For launches
// without MPI (srun, torchrun). `path` must be new for every launch (its job and step number in it).
struct NcclId {
  char bytes[128] = {};
};
NcclId share_nccl_id(const std::string& path, int rank, double seconds);
// The same from an id. Tensors on the host go through GPU memory.
std::unique_ptr<Communicator> make_nccl(const NcclId& id, int rank, int ranks, core::Device device);

}  // namespace sinter::comm
