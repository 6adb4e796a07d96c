# Configures a project that adds dtensor's tree, and compiles a program. It
# does not link, because that would build the library again.
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)

file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} -G ${generator}
  -S ${CMAKE_CURRENT_LIST_DIR}/subdirectory -B ${work}/build
  -D dtensor_source=${dtensor_source} -D Torch_DIR=${torch})
run(${CMAKE_COMMAND} --build ${work}/build --target layout)
