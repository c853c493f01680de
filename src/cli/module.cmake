# Editing of lines in the terminal, chosen by file.
pkg_check_modules(libedit QUIET IMPORTED_TARGET libedit)
if(libedit_FOUND)
  list(FILTER sources EXCLUDE REGEX "line_editor_absent\\.cc$")
  list(APPEND MODULE_LIBS PkgConfig::libedit)
else()
  list(FILTER sources EXCLUDE REGEX "line_editor_libedit\\.cc$")
endif()
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
get_property(arrow_text GLOBAL PROPERTY SINTER_ARROW_TEXT)  # set where the data module looks for it
set_source_files_properties(${folder}/version.cc PROPERTIES COMPILE_DEFINITIONS
  "SINTER_VERSION=\"${PROJECT_VERSION}\";SINTER_COMMIT=\"commit ${commit}\";SINTER_CUDA_TEXT=\"${cuda_text}\";SINTER_MPI_TEXT=\"${mpi_text}\";SINTER_ARROW_TEXT=\"${arrow_text}\";SINTER_COMPILER_TEXT=\"${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}\"")
