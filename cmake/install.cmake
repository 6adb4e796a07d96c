# Installs the targets under their build-tree names, for find_package(dtensor).
# No run path is installed: an installed copy finds LibTorch as its consumer
# does.

include(CMakePackageConfigHelpers)

set(targets dtensor_core dtensor_dtensor)
foreach(name testing legacy_tp torchscript)
  if(TARGET dtensor_${name})
    list(APPEND targets dtensor_${name})
  endif()
endforeach()
install(TARGETS ${targets} EXPORT dtensorTargets FILE_SET HEADERS)
# Installed beside the library, which looks for them there.
foreach(kind ${dtensor_mpi_kinds})
  install(TARGETS dtensor_${kind} DESTINATION ${CMAKE_INSTALL_LIBDIR})
endforeach()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/dtensor)
install(EXPORT dtensorTargets
  NAMESPACE dtensor:: DESTINATION ${package_dir})
write_basic_package_version_file(dtensorConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
configure_file(cmake/dtensorConfig.cmake.in dtensorConfig.cmake @ONLY)
install(FILES
    ${PROJECT_SOURCE_DIR}/cmake/dtensorTorch.cmake
    ${PROJECT_BINARY_DIR}/dtensorConfig.cmake
    ${PROJECT_BINARY_DIR}/dtensorConfigVersion.cmake
  DESTINATION ${package_dir})

option(DTENSOR_PACKAGE "Build packages for other machines (cmake/package.cmake)" OFF)
if(DTENSOR_PACKAGE)
  include(cmake/package.cmake)
endif()
