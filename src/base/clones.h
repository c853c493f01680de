// SINTER_CLONES before a function: one clone for each level of the processor, chosen when the program starts. For plain
// loops that the compiler vectorizes; kernels choose by themselves.
#pragma once

// The thread sanitizer's functions cannot be called while a program is linked, which is when clones are chosen.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define SINTER_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SINTER_CLONES
#endif
