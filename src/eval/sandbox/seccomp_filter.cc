#include "eval/sandbox/seccomp_filter.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

namespace sinter::eval {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kMachine = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kMachine = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kMachine = 0;
#endif

constexpr long kRefused[] = {
#if defined(__x86_64__)
    SYS_fork,
    SYS_vfork,
#endif
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_ptrace,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_bpf,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_perf_event_open,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_userfaultfd,
    SYS_open_by_handle_at,
    SYS_quotactl,
    SYS_acct,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_settimeofday,
    SYS_clock_settime};

}  // namespace

std::vector<unsigned char> make_seccomp_filter() {
  if (kMachine == 0) return {};
  std::vector<sock_filter> code;
  auto add = [&](uint16_t op, uint32_t value, uint8_t yes = 0, uint8_t no = 0) {
    code.push_back({op, yes, no, value});
  };
  add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch));
  add(BPF_JMP | BPF_JEQ | BPF_K, kMachine, 1, 0);
  add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
#if defined(__x86_64__)
  add(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1);  // the calls of x32
  add(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
#endif
  // No new processes, only threads: clone's first argument tells which. clone3 keeps it in memory; glibc does without
  // it.
  add(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1);
  add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
  add(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4);
  add(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args));
  add(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0);
  add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  for (long call : kRefused) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1);
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
  }
  add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  std::vector<unsigned char> bytes(code.size() * sizeof(sock_filter));
  std::memcpy(bytes.data(), code.data(), bytes.size());
  return bytes;
}

}  // namespace sinter::eval
