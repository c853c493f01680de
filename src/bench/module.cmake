# The peer library of the matrix products, chosen by file.
if(SINTER_BENCH_PEERS AND DNNL_LIBRARY AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(FILTER sources EXCLUDE REGEX "peer_absent\\.cc$")
  list(APPEND MODULE_LIBS ${DNNL_LIBRARY})
else()
  list(FILTER sources EXCLUDE REGEX "peer_onednn\\.cc$")
endif()
