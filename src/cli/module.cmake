set(MODULE_PRECOMPILED <nlohmann/json.hpp>)
# What --version prints of this build.
execute_process(COMMAND git -C ${CMAKE_SOURCE_DIR} rev-parse --short HEAD OUTPUT_VARIABLE commit
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit "no git")
endif()
set(cuda_text "not built (make cuda)")
if(SINTER_CUDA)
  list(JOIN CMAKE_CUDA_ARCHITECTURES ", sm_" cuda_text)
  set(cuda_text "${CMAKE_CUDA_COMPILER_VERSION}, sm_${cuda_text}")
endif()
set(mpi_text "not found")
if(SINTER_MPI AND MPI_CXX_FOUND)
  set(mpi_text "MPI ${MPI_CXX_VERSION}")
endif()
set_source_files_properties(${folder}/version.cc PROPERTIES COMPILE_DEFINITIONS
  "SINTER_VERSION=\"${PROJECT_VERSION}\";SINTER_COMMIT=\"commit ${commit}\";SINTER_CUDA_TEXT=\"${cuda_text}\";SINTER_MPI_TEXT=\"${mpi_text}\";SINTER_COMPILER_TEXT=\"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\"")
