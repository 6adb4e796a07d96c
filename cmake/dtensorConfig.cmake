# find_package(dtensor): the targets dtensor::dtensor and dtensor::testing.
include(CMakeFindDependencyMacro)
if(NOT TARGET torch)
  find_dependency(Torch)
endif()
if(NOT TARGET dtensor::dtensor)
  include(${CMAKE_CURRENT_LIST_DIR}/dtensorTargets.cmake)
endif()
