// Memory of the host for what a device does not hold: plain memory, or files that are mapped, so that a state larger
// than the host's memory lives on disk and the system moves it. It is counted apart from the device's. For a GPU it is
// memory that kernels read and write over the bus.
#pragma once
#include <memory>
#include <string>

#include "core/device.h"

namespace sinter::core {

// folder: "" = memory; else every block is a file in it, without a name, gone with the process. Throws base::Error
// naming the folder when it cannot be written to, the disk is full or the device is a GPU, which reaches no files.
std::unique_ptr<Allocator> make_host_memory(const std::string& folder, Device device);

}  // namespace sinter::core
