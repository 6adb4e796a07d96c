# Configures a project that adds dtensor's tree, and compiles the program of
# README.md. It does not link, because that would build the library again.
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)

file(REMOVE_RECURSE ${work})
write_readme_program(${work}/hello.cpp ${dtensor_source})
run(${CMAKE_COMMAND} -G ${generator}
  -S ${CMAKE_CURRENT_LIST_DIR}/subdirectory -B ${work}/build
  -D program=${work}/hello.cpp
  -D dtensor_source=${dtensor_source} -D Torch_DIR=${torch})
run(${CMAKE_COMMAND} --build ${work}/build --target hello)
