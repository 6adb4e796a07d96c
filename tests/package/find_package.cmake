# Installs the build tree, then configures, builds and runs the programs of a
# project with only that installation and LibTorch.
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)

file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} --install ${dtensor_build} --prefix ${work}/prefix)

file(GLOB_RECURSE internals ${work}/prefix/*_impl.h)
if(internals)
  message(FATAL_ERROR "internal headers were installed: ${internals}")
endif()

# dtensor-run has a run path, because a program has no consumer that locates
# LibTorch.
if(EXISTS ${work}/prefix/bin/dtensor-run)
  run(${work}/prefix/bin/dtensor-run -n 2 true)
endif()

write_readme_program(${work}/hello.cpp ${dtensor_source})
run(${CMAKE_COMMAND} -G ${generator}
  -S ${CMAKE_CURRENT_LIST_DIR}/installed -B ${work}/build
  -D program=${work}/hello.cpp -D CMAKE_CXX_COMPILER=${compiler}
  -D CMAKE_PREFIX_PATH=${work}/prefix -D Torch_DIR=${torch})
run(${CMAKE_COMMAND} --build ${work}/build)
foreach(name hello scale_rows lora modules)
  run(${work}/build/${name})
endforeach()

# Runs the program under each installed launcher.
function(launch)
  find_program(launcher NAMES ${ARGV0} HINTS ${torchrun_folder} NO_CACHE)
  list(POP_FRONT ARGV)
  if(launcher)
    message(STATUS "under ${launcher} by ${backend}")
    run(${CMAKE_COMMAND} -E env OMPI_ALLOW_RUN_AS_ROOT=1
      OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 DTENSOR_BACKEND=${backend}
      ${launcher} ${ARGV} ${work}/build/hello)
  endif()
endfunction()

set(backend auto)

get_filename_component(torchrun_folder ${torch}/../../../../../../../bin REALPATH)
run(${work}/prefix/bin/dtensor-run -n 2 ${work}/build/hello)
launch(mpirun.openmpi --oversubscribe -n 2)
launch(mpirun.mpich -n 2)
launch(torchrun --no-python --nproc-per-node 2)

# The MPI modules are installed beside the library.
set(backend mpi)
file(GLOB_RECURSE modules ${work}/prefix/libdtensor_*.so)
if(modules MATCHES openmpi)
  launch(mpirun.openmpi --oversubscribe -n 2)
endif()
if(modules MATCHES mpich)
  launch(mpirun.mpich -n 2)
endif()
