# dtensor_test(<layer> <sources>...): the test program of one layer.
# dtensor_test_program(<target> <sources>...): one with a main of its own.
#
# All programs share one precompiled header (torch/torch.h, gtest, gmock). A
# source is written as if it did not exist: it includes what it uses.

find_package(GTest REQUIRED)
include(GoogleTest)

# Users of the precompiled header need its flags; the last is for ccache.
file(CONFIGURE OUTPUT test_headers.cpp CONTENT "// Has the precompiled header.\n")
add_library(dtensor_test_headers OBJECT
  ${CMAKE_CURRENT_BINARY_DIR}/test_headers.cpp)
target_link_libraries(dtensor_test_headers PUBLIC dtensor::dtensor GTest::gmock)
if(TARGET dtensor_testing)
  target_link_libraries(dtensor_test_headers PUBLIC dtensor::testing)
endif()
target_precompile_headers(dtensor_test_headers PRIVATE
  <torch/torch.h> <gmock/gmock.h> <gtest/gtest.h>)
dtensor_warnings(dtensor_test_headers)
target_compile_options(dtensor_test_headers PUBLIC
  $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)

function(dtensor_test_sources target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE dtensor_test_headers)
  target_precompile_headers(${target} REUSE_FROM dtensor_test_headers)
  dtensor_warnings(${target})
endfunction()

add_library(dtensor_test_main OBJECT ${PROJECT_SOURCE_DIR}/tests/main.cpp)
dtensor_test_sources(dtensor_test_main)

function(dtensor_test_program target)
  add_executable(${target} ${ARGN})
  dtensor_test_sources(${target})
endfunction()

function(dtensor_test layer)
  if(NOT ARGN)
    return()
  endif()
  set(target dtensor_${layer}_tests)
  dtensor_test_program(${target} ${ARGN})
  target_link_libraries(${target} PRIVATE dtensor_test_main)
  if(DTENSOR_TEST_EACH)
    gtest_discover_tests(${target}
      TEST_PREFIX "${layer}."
      DISCOVERY_MODE PRE_TEST
      DISCOVERY_TIMEOUT 120
      PROPERTIES TIMEOUT 300 LABELS "${layer}")
  else()
    add_test(NAME ${layer} COMMAND ${target})
    set_tests_properties(${layer} PROPERTIES TIMEOUT 1800 LABELS "${layer}")
  endif()
endfunction()
