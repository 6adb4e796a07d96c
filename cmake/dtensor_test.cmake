# dtensor_test(<layer> <sources>...): the test program of one layer.
#
# All programs share one precompiled header (torch/torch.h, gtest, gmock) and
# one main. A source is written as if neither existed: it includes what it uses.

find_package(GTest REQUIRED)
include(GoogleTest)

add_library(dtensor_test_main OBJECT ${PROJECT_SOURCE_DIR}/tests/main.cpp)
target_link_libraries(dtensor_test_main PUBLIC dtensor::dtensor GTest::gmock)
if(TARGET dtensor_testing)
  target_link_libraries(dtensor_test_main PUBLIC dtensor::testing)
endif()
target_precompile_headers(dtensor_test_main PRIVATE
  <torch/torch.h> <gmock/gmock.h> <gtest/gtest.h>)
# Users of the precompiled header need its flags; the last is for ccache.
dtensor_warnings(dtensor_test_main)
target_compile_options(dtensor_test_main PUBLIC
  $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)

function(dtensor_test layer)
  if(NOT ARGN)
    return()
  endif()
  set(target dtensor_${layer}_tests)
  add_executable(${target} ${ARGN})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE dtensor_test_main)
  target_precompile_headers(${target} REUSE_FROM dtensor_test_main)
  dtensor_warnings(${target})
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
