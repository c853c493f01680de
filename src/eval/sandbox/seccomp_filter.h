// The system calls that programs in the sandbox may not make, as a BPF program for the kernel.
#pragma once
#include <cstdint>
#include <vector>

namespace sinter::eval {

// Bytes of an array of sock_filter; empty on machines for which there is none. Processes (but not threads), sockets,
// tracing, mounting, new namespaces, keys, kernel modules and the like end with EPERM.
std::vector<unsigned char> make_seccomp_filter();

}  // namespace sinter::eval
