// Which instruction sets the Highway kernels are compiled for: AVX2, AVX-512, and one lane at a time as the portable
// fallback. The ones between are left out: they cost build time and no machine of interest stops there.
// Include before hwy/foreach_target.h.
#pragma once
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
