# Parquet by Apache Arrow, found or left out whole: SINTER_ARROW names a folder with include/ and the libraries (the pyarrow
# package of Python has them); without it build-deps/arrow is taken, which tools/setup fills, then python3 is asked.
set(SINTER_ARROW "$ENV{SINTER_ARROW}" CACHE PATH "Folder of Apache Arrow: include/arrow and libarrow, libparquet")
set(arrow_folder "${SINTER_ARROW}")
if(NOT arrow_folder AND EXISTS ${CMAKE_SOURCE_DIR}/build-deps/arrow/include/arrow/api.h)
  set(arrow_folder ${CMAKE_SOURCE_DIR}/build-deps/arrow)
endif()
if(NOT arrow_folder)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  execute_process(COMMAND ${Python3_EXECUTABLE} -c "import pyarrow; print(pyarrow.__path__[0])" OUTPUT_VARIABLE arrow_folder
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(GLOB arrow_libraries "${arrow_folder}/libarrow.so*" "${arrow_folder}/libparquet.so*" "${arrow_folder}/lib/libarrow.so"
     "${arrow_folder}/lib/libparquet.so")
list(LENGTH arrow_libraries arrow_count)
if(arrow_folder AND EXISTS "${arrow_folder}/include/arrow/api.h" AND arrow_count GREATER_EQUAL 2)
  list(FILTER sources EXCLUDE REGEX "parquet_absent\\.cc$")
  list(APPEND MODULE_LIBS ${arrow_libraries})
  set_source_files_properties(${folder}/formats/parquet_arrow.cc PROPERTIES COMPILE_OPTIONS "-isystem;${arrow_folder}/include;-Wno-error")
  message(STATUS "Parquet: Apache Arrow in ${arrow_folder}")
else()
  list(FILTER sources EXCLUDE REGEX "parquet_arrow\\.cc$")
  message(STATUS "Parquet: left out (Apache Arrow is not found)")
endif()
