# test_cuda_emulated: CUDA's own kernels as C++ on the CPU, against the cases (emulator.h). Needs CUDA's headers, neither nvcc
# nor a GPU. Hopper's instructions and what calls libraries are left out.
find_package(Python3 COMPONENTS Interpreter)
find_path(CUDA_HEADERS cuda_bf16.h HINTS /usr/local/cuda/include ENV CUDA_PATH PATH_SUFFIXES include)
if(CUDA_HEADERS AND Python3_Interpreter_FOUND AND NOT SINTER_CUDA AND NOT SINTER_SANITIZE)
  set(emulator ${folder}/cuda/emulator)
  set(emulated ${CMAKE_CURRENT_BINARY_DIR}/emulated)
  file(GLOB kernels CONFIGURE_DEPENDS RELATIVE ${folder}/cuda ${folder}/cuda/*.cu ${folder}/cuda/*.cuh ${folder}/cuda/attention/*.cu
       ${folder}/cuda/attention/*.cuh ${folder}/cuda/matmul/*.cu ${folder}/cuda/matmul/*.cuh)
  list(REMOVE_ITEM kernels sort.cu)  # CUB's
  set(translated "")
  set(translated_headers "")
  foreach(file ${kernels})
    string(REGEX REPLACE "\\.cu$" ".cc" name ${file})
    set(to ${emulated}/kernels/cuda/${name})
    get_filename_component(to_folder ${to} DIRECTORY)
    file(MAKE_DIRECTORY ${to_folder})
    add_custom_command(OUTPUT ${to} COMMAND ${Python3_EXECUTABLE} ${emulator}/translate.py ${folder}/cuda/${file} ${to}
                       DEPENDS ${folder}/cuda/${file} ${emulator}/translate.py)
    if(name MATCHES "\\.cc$")
      list(APPEND translated ${to})
    else()
      list(APPEND translated_headers ${to})
    endif()
  endforeach()
  # In the place of the real one, which asks CUDA's runtime.
  configure_file(${emulator}/check.h ${emulated}/core/cuda/check.h COPYONLY)
  add_executable(test_cuda_emulated ${translated} ${translated_headers} ${emulator}/emulator.cc ${emulator}/emulated_target.cc ${cases})
  target_include_directories(test_cuda_emulated BEFORE PRIVATE ${emulated})
  target_include_directories(test_cuda_emulated SYSTEM PRIVATE ${CUDA_HEADERS})
  target_link_libraries(test_cuda_emulated PRIVATE sinter_kernels GTest::gtest)
  # What nvcc understands and g++ warns of: pragmas, shadowed kernels, unused parts.
  target_compile_options(test_cuda_emulated PRIVATE -O2 -w)
  add_test(NAME test_cuda_emulated COMMAND test_cuda_emulated)
  set_tests_properties(test_cuda_emulated PROPERTIES LABELS golden TIMEOUT 900)
endif()
