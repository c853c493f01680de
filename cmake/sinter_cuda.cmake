# The CUDA toolchain and libraries, as the one target sinter_cuda_libraries. Included when SINTER_CUDA is on.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80;90a")
endif()
if(NOT DEFINED CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CMAKE_CUDA_COMPILER nvcc HINTS /usr/local/cuda/bin ENV CUDA_PATH PATH_SUFFIXES bin)
endif()
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
find_package(CUDAToolkit REQUIRED)

# FMT_*: fmt 9 takes nvcc for a compiler without constexpr; format strings are checked by the C++ files only.
# -lineinfo: profilers and compute-sanitizer name the source line. No --use_fast_math: kernels that can afford the
# approximate functions call them by name. --compress-mode: a sixth of what the default leaves of the kernels.
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--extended-lambda;-lineinfo;--compress-mode=size;-Xcompiler=-Wall,-Wno-array-bounds>")
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-DFMT_USE_CONSTEXPR=1;-DFMT_CONSTEVAL=;-Wno-deprecated-gpu-targets;--diag-suppress=177,20012,20013,20014,20015>")

add_library(sinter_cuda_libraries INTERFACE)
target_link_libraries(sinter_cuda_libraries INTERFACE CUDA::cudart CUDA::cublasLt)
target_include_directories(sinter_cuda_libraries SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})

# cuDNN's attention, through the header-only cudnn-frontend: both or neither. Without them our own kernel does all.
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUDNN_PATH PATH_SUFFIXES include)
find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} ENV CUDNN_PATH PATH_SUFFIXES lib lib64)
find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
          HINTS ${CMAKE_SOURCE_DIR}/build-deps/cudnn-frontend/include ENV CUDNN_FRONTEND_PATH PATH_SUFFIXES include)
if(CUDNN_INCLUDE_DIR AND CUDNN_LIBRARY AND CUDNN_FRONTEND_INCLUDE_DIR)
  set(SINTER_CUDNN ON)
  target_include_directories(sinter_cuda_libraries SYSTEM INTERFACE ${CUDNN_INCLUDE_DIR} ${CUDNN_FRONTEND_INCLUDE_DIR})
  target_link_libraries(sinter_cuda_libraries INTERFACE ${CUDNN_LIBRARY} CUDA::nvrtc CUDA::cuda_driver ${CMAKE_DL_LIBS})
  message(STATUS "cuDNN attention: ${CUDNN_LIBRARY}, frontend ${CUDNN_FRONTEND_INCLUDE_DIR}")
else()
  set(SINTER_CUDNN OFF)
  message(STATUS "cuDNN attention: not built (cudnn or the cudnn-frontend headers were not found; run tools/setup)")
endif()

# Hopper's products with activations inside and its attention, by the header-only CUTLASS. Without it products go in
# parts and attention by cuDNN or our other kernels.
find_path(CUTLASS_INCLUDE_DIR cutlass/cutlass.h
          HINTS ${CMAKE_SOURCE_DIR}/build-deps/cutlass/include ENV CUTLASS_PATH PATH_SUFFIXES include)
if(CUTLASS_INCLUDE_DIR AND CMAKE_CUDA_ARCHITECTURES MATCHES "90a")
  set(SINTER_CUTLASS ON)
  message(STATUS "CUTLASS kernels for sm_90a: ${CUTLASS_INCLUDE_DIR}")
else()
  set(SINTER_CUTLASS OFF)
  message(STATUS "CUTLASS kernels: not built (the headers were not found, or sm_90a is not asked for; run tools/setup)")
endif()
