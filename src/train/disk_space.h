// Whether a run's checkpoints fit the disk they go to, looked at before the first step.
#pragma once
#include <cstdint>
#include <string>

namespace sinter::train {

struct DiskNeed {
  size_t state_bytes = 0, model_bytes = 0;  // of one checkpoint: native state, Hugging Face folder
  int64_t kept = 0;                         // newest states that stay
  size_t checkpoint_bytes() const { return state_bytes + model_bytes; }
  // While one more is written than are kept.
  size_t most_bytes() const { return checkpoint_bytes() * static_cast<size_t>(kept + 1); }
};

// Free for this user on the file system of `path` or of the nearest folder above that is there; SIZE_MAX where the
// system does not say.
size_t free_disk_bytes(const std::string& path);
// Bytes of the files below a folder; 0 where there is none.
size_t folder_bytes(const std::string& folder);
// "checkpoint 4.5 MiB, 2 kept and 1 under way; disk free 3.0 MiB"
std::string describe_disk(const DiskNeed& need, size_t free_bytes);
// Throws base::Error naming `dir` when not even one checkpoint fits in what is free; warns when those that are kept do
// not, beside the `there` bytes that the folder holds already and that will give way.
void check_disk(const DiskNeed& need, const std::string& dir, size_t free_bytes, size_t there);
// The same for the disk and the folder as they are.
void check_disk_of(const DiskNeed& need, const std::string& dir);

}  // namespace sinter::train
