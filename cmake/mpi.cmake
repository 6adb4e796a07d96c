# The modules dtensor_openmpi and dtensor_mpich, one for each MPI that is found.
# The library links neither. It loads the one that it needs from its own folder.
# find_package(MPI) is not used: it finds one implementation only, and fails for
# an MPI that is installed without its development files.

# dtensor_find_mpi(<prefix> <wrapper>): reads the flags that this compiler
# wrapper passes to a compiler, into <prefix>_KIND, _INCLUDES, _LIBRARIES. KIND
# is empty if the wrapper is not usable.
function(dtensor_find_mpi prefix wrapper)
  set(${prefix}_KIND "" PARENT_SCOPE)
  execute_process(COMMAND ${wrapper} --showme:version
    RESULT_VARIABLE is_other OUTPUT_QUIET ERROR_QUIET)
  execute_process(COMMAND ${wrapper} -show
    RESULT_VARIABLE failed OUTPUT_VARIABLE line ERROR_QUIET)
  if(failed)
    return()
  endif()
  foreach(letter I L l)
    string(REGEX MATCHALL " -${letter}[^ \n]+" found "${line}")
    list(TRANSFORM found REPLACE "^ -${letter}" "" OUTPUT_VARIABLE of_${letter})
  endforeach()
  find_file(header mpi.h PATHS ${of_I} NO_DEFAULT_PATH NO_CACHE)
  find_file(header mpi.h NO_CACHE)
  set(libraries)
  foreach(name ${of_l})
    find_library(library ${name} PATHS ${of_L} NO_DEFAULT_PATH NO_CACHE)
    find_library(library ${name} NO_CACHE)
    if(NOT library)
      return()
    endif()
    list(APPEND libraries ${library})
    unset(library)
  endforeach()
  if(header AND libraries)
    set(kind openmpi)
    if(is_other)
      set(kind mpich)
    endif()
    set(${prefix}_KIND ${kind} PARENT_SCOPE)
    set(${prefix}_INCLUDES ${of_I} PARENT_SCOPE)
    set(${prefix}_LIBRARIES ${libraries} PARENT_SCOPE)
  endif()
endfunction()

# dtensor_mpi_module(<kind> <includes> <libraries>): an MPI that the linker
# finds by default needs no run path.
function(dtensor_mpi_module kind includes libraries)
  set(target dtensor_${kind})
  add_library(${target} MODULE ${DTENSOR_MPI_SOURCES})
  target_link_libraries(${target} PRIVATE dtensor::core ${libraries})
  target_link_options(${target} PRIVATE LINKER:--as-needed)
  target_include_directories(${target} SYSTEM PRIVATE ${includes})
  # Uses only the C part of mpi.h.
  target_compile_definitions(${target} PRIVATE
    OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  dtensor_warnings(${target})
  set(folders)
  foreach(library ${libraries})
    cmake_path(GET library PARENT_PATH folder)
    list(APPEND folders ${folder})
  endforeach()
  list(REMOVE_ITEM folders ${CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES})
  set_target_properties(${target} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY $<TARGET_FILE_DIR:dtensor_core>
    INSTALL_RPATH "${folders}")
endfunction()

set(DTENSOR_MPI AUTO CACHE STRING
  "The backend of MPI: AUTO builds it for each MPI found, ON fails without an MPI, OFF disables it")
set(dtensor_mpi_kinds)
# Shared libraries only: a module cannot find a static library.
if(DTENSOR_MPI AND dtensor_kind STREQUAL SHARED)
  foreach(name mpicc.openmpi mpicc.mpich mpicc)
    find_program(wrapper ${name} NO_CACHE)
    if(NOT wrapper)
      continue()
    endif()
    dtensor_find_mpi(mpi ${wrapper})
    if(mpi_KIND AND NOT mpi_KIND IN_LIST dtensor_mpi_kinds)
      dtensor_mpi_module(${mpi_KIND} "${mpi_INCLUDES}" "${mpi_LIBRARIES}")
      # For tests: the launcher has the wrapper's name and folder.
      string(REGEX REPLACE "mpicc([^/]*)$" "mpirun\\1" mpirun ${wrapper})
      set(dtensor_${mpi_KIND}_run ${mpirun})
      list(APPEND dtensor_mpi_kinds ${mpi_KIND})
    endif()
    unset(wrapper)
  endforeach()
endif()
if(DTENSOR_MPI STREQUAL ON AND NOT dtensor_mpi_kinds)
  message(FATAL_ERROR "DTENSOR_MPI is ON, but no MPI for a shared "
    "library was found. Install libopenmpi-dev or libmpich-dev, or put mpicc in the PATH.")
endif()
message(STATUS "MPI: ${dtensor_mpi_kinds}")
