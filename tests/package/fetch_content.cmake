# Configures a project that gets dtensor's source archive by FetchContent, and
# compiles a program. It does not link (target run_layout), because that would
# build the library again. The archive has the folders that the library needs.
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)

file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work})
execute_process(
  COMMAND ${CMAKE_COMMAND} -E tar czf ${work}/dtensor.tar.gz
    CMakeLists.txt cmake dtensor launcher
  WORKING_DIRECTORY ${dtensor_source}
  COMMAND_ERROR_IS_FATAL ANY)
run(${CMAKE_COMMAND} -G ${generator}
  -S ${CMAKE_CURRENT_LIST_DIR}/fetch_content -B ${work}/build
  -D dtensor_url=${work}/dtensor.tar.gz -D Torch_DIR=${torch})
run(${CMAKE_COMMAND} --build ${work}/build --target layout)
