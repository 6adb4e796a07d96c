# Run by cpack when the files of a package are in place. Sets the dependencies of
# a .deb to what dpkg-shlibdeps finds. LibTorch is in no package. The modules for
# MPI are left out, because they are loaded on demand.

if(NOT CPACK_GENERATOR STREQUAL DEB)
  return()
endif()

set(root ${CPACK_TEMPORARY_DIRECTORY}/usr)
file(GLOB binaries ${root}/bin/* ${root}/lib/libdtensor*.so.${CPACK_PACKAGE_VERSION})
# dpkg-shlibdeps reads a control file of the current folder.
set(work ${CPACK_TOPLEVEL_DIRECTORY}/depends)
file(WRITE ${work}/debian/control "Source: dtensor\n\nPackage: dtensor\nArchitecture: any\n")
execute_process(
  COMMAND ${CPACK_PACKAGE_SHLIBDEPS} --ignore-missing-info
    -l${root}/lib -l${CPACK_PACKAGE_TORCH} -O ${binaries}
  WORKING_DIRECTORY ${work}
  OUTPUT_VARIABLE depends ERROR_VARIABLE warnings RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "dpkg-shlibdeps: ${warnings}")
endif()
string(REGEX REPLACE "^shlibs:Depends=|\n" "" CPACK_DEBIAN_PACKAGE_DEPENDS "${depends}")
message(STATUS "Dependencies of the .deb: ${CPACK_DEBIAN_PACKAGE_DEPENDS}")
