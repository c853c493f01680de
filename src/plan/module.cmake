# data/hardware.toml becomes a string constant of the library, so that the program needs no file at run time.
set(hardware_toml ${CMAKE_SOURCE_DIR}/data/hardware.toml)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${hardware_toml})
file(READ ${hardware_toml} HARDWARE_TOML)
set(hardware_source ${CMAKE_BINARY_DIR}/generated/plan/hardware_table.cc)
configure_file(${folder}/hardware_table.cc.in ${hardware_source} @ONLY)
list(APPEND sources ${hardware_source})
