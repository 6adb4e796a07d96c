# Configures, builds and runs a foreign project with a module style of its own,
# with nothing but an installation and LibTorch.
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)

file(REMOVE_RECURSE ${work})
run(${CMAKE_COMMAND} --install ${dtensor_build} --prefix ${work}/prefix)
run(${CMAKE_COMMAND} -G ${generator}
  -S ${CMAKE_CURRENT_LIST_DIR}/style -B ${work}/build
  -D CMAKE_PREFIX_PATH=${work}/prefix -D Torch_DIR=${torch})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/lora)
