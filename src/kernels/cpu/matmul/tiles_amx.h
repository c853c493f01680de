// The tile registers of AMX as every kernel here uses them: eight of 16 rows of 64 bytes. Included by files compiled
// for AMX only; internal linkage for the reason given in matmul_tile.h.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace sinter::kernels::cpu {
namespace {

// The operand of LDTILECFG, palette 1.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

inline void configure_tiles(const TileConfig& config) {
  asm volatile("" ::"r"(&config) : "memory");  // GCC 12's intrinsic names only 8 bytes of what it reads
  _tile_loadconfig(&config);
}
// Before the first tile instruction of a thread; _tile_release() gives the registers back.
inline void configure_tiles() {
  static constexpr TileConfig kConfig;
  configure_tiles(kConfig);
}

}  // namespace
}  // namespace sinter::kernels::cpu
