# Configures, builds and runs a project with the installed headers and the
# library as an archive (`archive`). The shared objects are removed before it
# runs.
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)

file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} --install ${dtensor_build} --prefix ${work}/prefix)
run(${CMAKE_COMMAND} -G ${generator}
  -S ${CMAKE_CURRENT_LIST_DIR}/static -B ${work}/build
  -D archive=${archive} -D headers=${work}/prefix/include
  -D CMAKE_PREFIX_PATH=${work}/prefix -D Torch_DIR=${torch})
run(${CMAKE_COMMAND} --build ${work}/build)
file(REMOVE_RECURSE ${work}/prefix)
run(${work}/build/scale_rows)
