# test_cuda_emulated: CUDA's own kernels as C++ on the CPU, against the cases (emulator.h). Needs CUDA's headers, neither nvcc
# nor a GPU. Hopper's instructions and what calls libraries are left out.
function(sinter_add_emulated_tests folder cases)
  find_package(Python3 COMPONENTS Interpreter)
  find_path(CUDA_HEADERS cuda_bf16.h HINTS /usr/local/cuda/include ENV CUDA_PATH PATH_SUFFIXES include)
  if(NOT CUDA_HEADERS OR NOT Python3_Interpreter_FOUND OR SINTER_CUDA OR SINTER_SANITIZE)
    return()
  endif()
  set(emulator ${folder}/cuda/emulator)
  set(emulated ${CMAKE_CURRENT_BINARY_DIR}/emulated)
  file(GLOB kernels CONFIGURE_DEPENDS RELATIVE ${folder}/cuda ${folder}/cuda/*.cu ${folder}/cuda/*.cuh
       ${folder}/cuda/attention/*.cu ${folder}/cuda/attention/*.cuh ${folder}/cuda/matmul/*.cu ${folder}/cuda/matmul/*.cuh)
  list(REMOVE_ITEM kernels sort.cu)  # CUB's
  set(translated "")
  foreach(kernel ${kernels})
    string(REGEX REPLACE "\\.cu$" ".cc" to ${emulated}/kernels/cuda/${kernel})
    get_filename_component(to_folder ${to} DIRECTORY)
    file(MAKE_DIRECTORY ${to_folder})
    add_custom_command(OUTPUT ${to} COMMAND ${Python3_EXECUTABLE} ${emulator}/translate.py ${folder}/cuda/${kernel} ${to}
                       DEPENDS ${folder}/cuda/${kernel} ${emulator}/translate.py)
    list(APPEND translated ${to})
  endforeach()
  configure_file(${emulator}/check.h ${emulated}/core/cuda/check.h COPYONLY)  # the real one asks CUDA's runtime
  add_executable(test_cuda_emulated ${translated} ${emulator}/emulator.cc ${emulator}/emulated_target.cc ${cases})
  target_include_directories(test_cuda_emulated BEFORE PRIVATE ${emulated})
  target_include_directories(test_cuda_emulated SYSTEM PRIVATE ${CUDA_HEADERS})
  target_link_libraries(test_cuda_emulated PRIVATE sinter_kernels GTest::gtest)
  # As nvcc has it: memory has no types, and g++ warns of its pragmas.
  target_compile_options(test_cuda_emulated PRIVATE -O1 -fno-strict-aliasing -w)
  # Its slowest cases, of long documents, take half of the time.
  add_test(NAME test_cuda_emulated COMMAND test_cuda_emulated --gtest_filter=-DocumentAttention*:NormBackward.f32*)
  set_tests_properties(test_cuda_emulated PROPERTIES LABELS golden TIMEOUT 900)
endfunction()
