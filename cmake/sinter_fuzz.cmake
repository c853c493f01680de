# sinter_fuzz(name LIBS targets... SEEDS files... [COUNT n]): builds tests/fuzz/<name>_fuzz.cc, which defines
# LLVMFuzzerTestOneInput, into <name>_fuzz and runs n mutations (default 2000) of the seed files as the test fuzz_<name>.
# With SINTER_LIBFUZZER (clang) the program is a libFuzzer target instead of the deterministic driver.
option(SINTER_LIBFUZZER "Build the fuzz targets with libFuzzer (needs clang)" OFF)

function(sinter_fuzz name)
  cmake_parse_arguments(ARG "" "COUNT" "LIBS;SEEDS" ${ARGN})
  if(NOT ARG_COUNT)
    set(ARG_COUNT 2000)
  endif()
  set(folder ${CMAKE_SOURCE_DIR}/tests/fuzz)
  set(program ${name}_fuzz)
  if(SINTER_LIBFUZZER)
    add_executable(${program} ${folder}/${name}_fuzz.cc)
    target_compile_options(${program} PRIVATE -fsanitize=fuzzer)
    target_link_options(${program} PRIVATE -fsanitize=fuzzer)
  else()
    add_executable(${program} ${folder}/${name}_fuzz.cc ${folder}/driver.cc)
    add_test(NAME fuzz_${name} COMMAND ${program} --count ${ARG_COUNT} ${ARG_SEEDS})
    set_tests_properties(fuzz_${name} PROPERTIES LABELS fast TIMEOUT 600)
  endif()
  target_link_libraries(${program} PRIVATE ${ARG_LIBS})
endfunction()
