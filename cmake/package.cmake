# Packages for other machines, a tar.gz and a .deb, for the minor version of
# LibTorch that this build uses. Included with DTENSOR_PACKAGE on: no installed
# file then contains a path of this machine.

set(package_targets ${targets})
foreach(kind ${dtensor_mpi_kinds})
  list(APPEND package_targets dtensor_${kind})
endforeach()
if(TARGET dtensor_run)
  list(APPEND package_targets dtensor_run)
endif()

# Messages name files as `#include` does. Without its base folder, ccache
# compiles with the paths given here.
set(package_launcher ${CMAKE_CXX_COMPILER_LAUNCHER})
list(FILTER package_launcher EXCLUDE REGEX "^CCACHE_BASEDIR")
foreach(target ${package_targets})
  target_compile_options(${target} PRIVATE
    -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=
    -ffile-prefix-map=${dtensor_torch_root}/include/=)
  set_target_properties(${target} PROPERTIES
    CXX_COMPILER_LAUNCHER "${package_launcher}")
endforeach()

# An archive that is unpacked into LibTorch's folder finds LibTorch beside it. An
# MPI is found by the loader.
set_target_properties(${package_targets} PROPERTIES INSTALL_RPATH $ORIGIN)
if(TARGET dtensor_run)
  set_target_properties(dtensor_run PROPERTIES INSTALL_RPATH $ORIGIN/../lib)
endif()
# The library calls libc10_cuda. A program links it too, first, so that its own
# run path finds it, and that of libc10_cuda finds libcudart.
if(dtensor_torch_kind MATCHES "^CUDA")
  string(CONCAT option "SHELL:LINKER:--push-state,--no-as-needed "
    "$<TARGET_FILE:c10_cuda> LINKER:--pop-state")
  target_link_options(dtensor_core INTERFACE "$<INSTALL_INTERFACE:${option}>")
endif()

# Names: dtensor-0.2.0-torch2.13-linux-x86_64.tar.gz and
# libdtensor-torch2.13-dev_0.2.0_amd64.deb; torch2.13-cuda for CUDA.
string(REGEX MATCH "^[0-9]+\\.[0-9]+" package_torch ${dtensor_torch_version})
set(package_torch torch${package_torch})
if(dtensor_torch_kind MATCHES "^CUDA")
  string(APPEND package_torch -cuda)
endif()
string(TOLOWER ${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR} package_system)
set(CPACK_PACKAGE_FILE_NAME
  dtensor-${PROJECT_VERSION}-${package_torch}-${package_system})
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_PACKAGE_CHECKSUM SHA256)
set(CPACK_PACKAGE_VENDOR "the dtensor authors")
set(CPACK_STRIP_FILES ON)
set(CPACK_GENERATOR TGZ)
find_program(package_shlibdeps dpkg-shlibdeps NO_CACHE)
if(package_shlibdeps)
  list(APPEND CPACK_GENERATOR DEB)
else()
  message(STATUS "Packages: no .deb, dpkg-shlibdeps not found (apt-get install dpkg-dev)")
endif()

# Two .debs would install the same files, so at most one is installed.
set(CPACK_DEBIAN_PACKAGE_NAME libdtensor-${package_torch}-dev)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER ${CPACK_PACKAGE_VENDOR})
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
  "Libraries, headers, CMake files and the launcher dtensor-run, for
LibTorch ${dtensor_torch_version} (${dtensor_torch_kind}), which is not part of Debian: from
pytorch.org or Python's package torch. MPI is loaded if a program asks for it.")
foreach(field PROVIDES CONFLICTS REPLACES)
  set(CPACK_DEBIAN_PACKAGE_${field} libdtensor-dev)
endforeach()
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "cmake (>= 3.25), g++ (>= 4:12)")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "openmpi-bin, mpich")
set(package_triggers ${PROJECT_BINARY_DIR}/package/triggers)
file(WRITE ${package_triggers} "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${package_triggers})
# Sets CPACK_DEBIAN_PACKAGE_DEPENDS.
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package_depends.cmake)
set(CPACK_PACKAGE_SHLIBDEPS ${package_shlibdeps})
set(CPACK_PACKAGE_TORCH ${dtensor_torch_root}/lib)

# Licenses, where Debian expects them.
file(READ LICENSE package_license)
file(READ packaging/third_party.txt package_third_party)
file(WRITE ${PROJECT_BINARY_DIR}/package/copyright
  "${package_license}\n\n${package_third_party}")
install(FILES ${PROJECT_BINARY_DIR}/package/copyright
  DESTINATION share/doc/${CPACK_DEBIAN_PACKAGE_NAME})

include(CPack)
