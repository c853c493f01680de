# The page is part of the program.
set(page_source ${CMAKE_BINARY_DIR}/server_page.cc)
file(GLOB page_files CONFIGURE_DEPENDS ${folder}/page/*)
add_custom_command(OUTPUT ${page_source} COMMAND ${CMAKE_COMMAND} -DOUT=${page_source} -DFOLDER=${folder}/page -P ${folder}/embed.cmake
                   DEPENDS ${page_files} ${folder}/embed.cmake VERBATIM)
list(APPEND sources ${page_source})
