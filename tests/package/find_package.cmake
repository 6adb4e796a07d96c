# Installs the build tree, then configures, builds and runs the project in
# installed/ with nothing but that installation and LibTorch.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} --install ${dtensor_build} --prefix ${work}/prefix)

file(GLOB_RECURSE internals ${work}/prefix/*_impl.h)
if(internals)
  message(FATAL_ERROR "internal headers were installed: ${internals}")
endif()

run(${CMAKE_COMMAND} -G ${generator}
  -S ${CMAKE_CURRENT_LIST_DIR}/installed -B ${work}/build
  -D CMAKE_PREFIX_PATH=${work}/prefix -D Torch_DIR=${torch})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/hello)
