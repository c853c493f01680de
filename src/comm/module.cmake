# Transports are folders, chosen here by file.
if(SINTER_MPI AND MPI_CXX_FOUND)
  list(FILTER sources EXCLUDE REGEX "mpi_absent\\.cc$")
  file(GLOB mpi_sources CONFIGURE_DEPENDS ${folder}/mpi/*.cc)
  list(APPEND sources ${mpi_sources})
  list(APPEND MODULE_LIBS MPI::MPI_CXX)
endif()
