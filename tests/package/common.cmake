# Runs a command, and fails if the command fails.
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Installs dtensor, then configures and builds the project in `folder` with only
# that installation and LibTorch, and runs its `program`.
function(run_against_installation folder program)
  file(REMOVE_RECURSE ${work})
  run(${CMAKE_COMMAND} --install ${dtensor_build} --prefix ${work}/prefix)
  run(${CMAKE_COMMAND} -G ${generator}
    -S ${CMAKE_CURRENT_LIST_DIR}/${folder} -B ${work}/build
    -D CMAKE_PREFIX_PATH=${work}/prefix -D Torch_DIR=${torch})
  run(${CMAKE_COMMAND} --build ${work}/build)
  run(${work}/build/${program})
endfunction()

# Writes the first C++ program of README.md in `source` to `path`.
function(write_readme_program path source)
  file(READ ${source}/README.md text)
  string(FIND "${text}" "```cpp\n" begin)
  if(begin EQUAL -1)
    message(FATAL_ERROR "README.md has no ```cpp block")
  endif()
  math(EXPR begin "${begin} + 7")
  string(SUBSTRING "${text}" ${begin} -1 text)
  string(FIND "${text}" "```" end)
  string(SUBSTRING "${text}" 0 ${end} text)
  file(WRITE ${path} "${text}")
endfunction()
