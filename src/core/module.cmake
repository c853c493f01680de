# The CUDA runtime is one folder, chosen here by file.
if(SINTER_CUDA)
  list(FILTER sources EXCLUDE REGEX "cuda_absent\\.cc$")
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${folder}/cuda/*.cc ${folder}/cuda/*.cu)
  list(APPEND sources ${cuda_sources})
  list(APPEND MODULE_LIBS sinter_cuda_libraries)
  list(JOIN CMAKE_CUDA_ARCHITECTURES ", sm_" built_for)
  set_source_files_properties(${folder}/cuda/runtime.cc PROPERTIES COMPILE_DEFINITIONS
                              "SINTER_CUDA_ARCHITECTURES=\"sm_${built_for}\"")
endif()
