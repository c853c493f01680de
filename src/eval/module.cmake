# tasks/*.toml become string constants of the library, so that the program needs no file at run time.
file(GLOB task_files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tasks/*.toml)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${task_files})
set(SHIPPED_TASKS "")
foreach(task_file ${task_files})
  get_filename_component(task_name ${task_file} NAME)
  file(READ ${task_file} task_text)
  string(APPEND SHIPPED_TASKS "{\"${task_name}\", R\"toml(${task_text})toml\"},\n")
endforeach()
set(task_source ${CMAKE_BINARY_DIR}/generated/eval/shipped_tasks.cc)
configure_file(${folder}/tasks/shipped_tasks.cc.in ${task_source} @ONLY)
list(APPEND sources ${task_source})
find_package(ZLIB REQUIRED)
list(APPEND MODULE_LIBS ZLIB::ZLIB tomlplusplus pcre2)
# The log-softmax over a vocabulary is the one loop of this folder in which time is spent.
set(log_softmax_flags -O3 -fno-math-errno -fopenmp-simd)
if(SINTER_SANITIZE)
  list(APPEND log_softmax_flags -fno-sanitize=all)  # GCC 12 ends in an internal error on it under its sanitizers
endif()
set_source_files_properties(${folder}/score/log_softmax.cc PROPERTIES COMPILE_OPTIONS "${log_softmax_flags}"
                            SKIP_PRECOMPILE_HEADERS ON)
# Language profiles and the punkt model are part of the program.
set_source_files_properties(${folder}/language/data.cc PROPERTIES
  COMPILE_DEFINITIONS "SINTER_LANGUAGE_DATA=\"${folder}/language/data\""
  OBJECT_DEPENDS "${folder}/language/data/language_profiles.zst;${folder}/language/data/punkt_english.zst"
  SKIP_PRECOMPILE_HEADERS ON)
