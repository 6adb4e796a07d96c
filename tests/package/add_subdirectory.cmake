# Configures the project in subdirectory/, which adds dtensor's tree, and
# compiles its one source. It does not link: that would build the library again.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} -G ${generator}
  -S ${CMAKE_CURRENT_LIST_DIR}/subdirectory -B ${work}
  -D dtensor_source=${dtensor_source} -D Torch_DIR=${torch})
run(${CMAKE_COMMAND} --build ${work} --target hello)
