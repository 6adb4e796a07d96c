# The wheel: the package with its own copy of the installed library, in
# dtensor/lib, its headers and its CMake package. The library uses the libraries
# of LibTorch that `import torch` has loaded.
cmake_path(SET prefix NORMALIZE ${dtensor_DIR}/../../..)
list(TRANSFORM modules PREPEND dtensor/ OUTPUT_VARIABLE installed)
install(TARGETS dtensor_python DESTINATION dtensor)
install(FILES ${installed} DESTINATION dtensor)
install(DIRECTORY ${prefix}/include DESTINATION dtensor)

# A wheel cannot hold links, so each library has the name that loaders look for
# alone (libdtensor.so.0.2).
set(full_version "(\\.so\\.[0-9]+\\.[0-9]+)\\.[0-9]+")
file(GLOB libraries ${prefix}/lib/*dtensor*.so ${prefix}/lib/*dtensor*.so.*)
foreach(library ${libraries})
  if(NOT IS_SYMLINK ${library})
    cmake_path(GET library FILENAME name)
    string(REGEX REPLACE "${full_version}" "\\1" name ${name})
    install(PROGRAMS ${library} DESTINATION dtensor/lib RENAME ${name})
  endif()
endforeach()
file(GLOB package_files ${dtensor_DIR}/*.cmake)
foreach(package_file ${package_files})
  cmake_path(GET package_file FILENAME name)
  file(READ ${package_file} text)
  string(REGEX REPLACE "${full_version}" "\\1" text "${text}")
  file(WRITE ${PROJECT_BINARY_DIR}/package/${name} "${text}")
  install(FILES ${PROJECT_BINARY_DIR}/package/${name}
    DESTINATION dtensor/lib/cmake/dtensor)
endforeach()
