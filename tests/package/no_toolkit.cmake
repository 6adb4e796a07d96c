# Configures, builds and runs a project with a LibTorch for CUDA, of a CUDA
# version without a toolkit on any machine. LibTorch, its libcudart and dtensor
# are folders with the files that are read.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)

file(REMOVE_RECURSE ${work})
set(site ${work}/site-packages)
set(root ${site}/torch)
file(WRITE ${root}/version.py "cuda: Optional[str] = '99.1'\n")
file(WRITE ${root}/lib/libtorch_cuda.so "")
file(WRITE ${root}/share/cmake/Torch/TorchConfigVersion.cmake
  "set(PACKAGE_VERSION \"2.15.0\")\n"
  "if(NOT PACKAGE_FIND_VERSION VERSION_GREATER 2.15.0)\n"
  "  set(PACKAGE_VERSION_COMPATIBLE TRUE)\nendif()\n")
file(WRITE ${root}/share/cmake/Torch/TorchConfig.cmake
  "if(NOT TARGET torch::cudart)\n"
  "  message(FATAL_ERROR \"LibTorch looks for the CUDA toolkit\")\nendif()\n"
  "if(NOT TARGET torch)\n"
  "  add_library(torch INTERFACE IMPORTED)\n"
  "  target_include_directories(torch INTERFACE ${root}/include)\n"
  "  target_link_libraries(torch INTERFACE torch::cudart)\nendif()\n")
file(WRITE ${root}/include/torch.h "")

set(dtensor_torch_version 2.15.0)
set(dtensor_torch_kind "CUDA 99.1")
configure_file(${dtensor_source}/cmake/dtensorConfig.cmake.in
  ${work}/dtensor/dtensorConfig.cmake @ONLY)
file(COPY ${dtensor_source}/cmake/dtensorTorch.cmake DESTINATION ${work}/dtensor)
file(WRITE ${work}/dtensor/dtensorTargets.cmake
  "add_library(dtensor::dtensor INTERFACE IMPORTED)\n"
  "target_link_libraries(dtensor::dtensor INTERFACE torch)\n")

# Configures the project and sets `failed` and `text`.
function(configure)
  file(REMOVE_RECURSE ${work}/build)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -G ${generator}
      -S ${CMAKE_CURRENT_LIST_DIR}/no_toolkit -B ${work}/build
      -D site=${site} -D dtensor_DIR=${work}/dtensor
      -D CMAKE_PREFIX_PATH=${root} ${ARGN}
    RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
  set(failed ${failed} PARENT_SCOPE)
  set(text "${text}" PARENT_SCOPE)
endfunction()

configure()
if(NOT failed OR NOT text MATCHES "has no libcudart")
  message(FATAL_ERROR "CMake did not report that libcudart is missing:\n${text}")
endif()

# Makes the package of libcudart.
run(${CMAKE_COMMAND} -G ${generator}
  -S ${CMAKE_CURRENT_LIST_DIR}/no_toolkit -B ${work}/cudart -D site=${site}
  -D only_cudart=ON)
run(${CMAKE_COMMAND} --build ${work}/cudart)

foreach(order dtensor_first torch_first)
  configure(-D ${order}=ON)
  if(failed)
    message(FATAL_ERROR "${order}: ${text}")
  endif()
  run(${CMAKE_COMMAND} --build ${work}/build)
  run(${work}/build/program)
endforeach()
