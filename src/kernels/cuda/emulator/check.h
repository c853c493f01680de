// core/cuda/check.h for the emulator: its calls do not fail, they end the program.
#pragma once
#include <cuda_runtime_api.h>

#include "base/error.h"

#define SINTER_CUDA_CHECK(...) static_cast<void>(__VA_ARGS__)
#define SINTER_CUDA_LAUNCHED() static_cast<void>(0)
