#include "base/cpu.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sinter::base {
namespace {

#if defined(__x86_64__)
uint64_t extended_control_register() {
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Linux hands out the tile registers on request, once per process (ARCH_REQ_XCOMP_PERM, feature 18 = tile data).
bool request_tiles() { return ::syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

CpuFeatures detect() {
  CpuFeatures f;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return f;
  bool has_fma = c & (1u << 12), has_xsave = c & (1u << 27), has_f16c = c & (1u << 29);
  if (!has_xsave) return f;
  uint64_t enabled = extended_control_register();
  bool ymm = (enabled & 0x6) == 0x6, zmm = (enabled & 0xe6) == 0xe6, tiles = (enabled & 0x60000) == 0x60000;
  uint32_t b7 = 0, c7 = 0, d7 = 0, a71 = 0;
  if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return f;
  if (a >= 1) __get_cpuid_count(7, 1, &a71, &b, &c, &d);
  f.avx2 = ymm && has_fma && has_f16c && (b7 & (1u << 5));
  constexpr uint32_t kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;
  f.avx512 = f.avx2 && zmm && (b7 & (kF | kDq | kBw | kVl)) == (kF | kDq | kBw | kVl);
  f.avx512_bf16 = f.avx512 && (a71 & (1u << 5));
  f.avx512_vnni = f.avx512 && (c7 & (1u << 11));
  bool tile_unit = d7 & (1u << 24);
  // Leaf 0x1D (palettes) may be hidden by a hypervisor; palette 1 works all the same, so it is not consulted.
  if (f.avx512_bf16 && tiles && tile_unit && (d7 & ((1u << 22) | (1u << 25))) && request_tiles()) {
    f.amx_bf16 = d7 & (1u << 22);
    f.amx_int8 = d7 & (1u << 25);
  }
  return f;
}
#else
CpuFeatures detect() { return {}; }
#endif

CpuFeatures limited(CpuFeatures f) {
  const char* text = std::getenv("SINTER_ISA");
  if (!text || !*text) return f;
  static constexpr std::string_view kLevels[] = {"portable", "avx2", "avx512", "avx512bf16", "amx"};
  int level = -1;
  for (int i = 0; i < 5; ++i) {
    if (kLevels[i] == text) level = i;
  }
  SINTER_CHECK(level >= 0, "SINTER_ISA is '{}'; expected portable, avx2, avx512, avx512bf16 or amx", text);
  if (level < 1) f.avx2 = false;
  if (level < 2) f.avx512 = f.avx512_vnni = false;
  if (level < 3) f.avx512_bf16 = false;
  if (level < 4) f.amx_bf16 = f.amx_int8 = false;
  return f;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = limited(detect());
  return features;
}

std::string cpu_description() {
  const CpuFeatures& f = cpu_features();
  std::string text;
  auto add = [&](bool has, const char* name) {
    if (has) text += (text.empty() ? "" : " ") + std::string(name);
  };
  add(f.avx2, "avx2");
  add(f.avx512, "avx512");
  add(f.avx512_bf16, "avx512_bf16");
  add(f.avx512_vnni, "avx512_vnni");
  add(f.amx_bf16, "amx_bf16");
  add(f.amx_int8, "amx_int8");
  return text.empty() ? "portable" : text;
}

}  // namespace sinter::base
