# dtensor_test(<layer> [EACH] <sources>...): the test program of one layer. ctest
# runs it in one process, and each suite named Slow in its own; with EACH, each
# test in its own, for tests that mostly wait. Presets without DTENSOR_TEST_EACH
# run all tests of a layer in one process.
#
# dtensor_test_program(<target> <sources>...): a test program with its own main.
#
# All programs share one precompiled header: torch/torch.h, gtest, gmock.
# Instantiating these headers' templates is three quarters of GCC's work per
# source, so several sources of a program are compiled as one unit. Tests define
# short names. To keep these apart in a unit, TEST_SOURCE is a different
# namespace in each source, and the unnamed namespace if a source is compiled
# alone.

find_package(GTest REQUIRED)
include(GoogleTest)

dtensor_precompiled(dtensor_test_headers
  <torch/torch.h> <gmock/gmock.h> <gtest/gtest.h>)
target_link_libraries(dtensor_test_headers PUBLIC dtensor::dtensor GTest::gmock)
# The library is compiled as the preset says.
target_compile_options(dtensor_test_headers PUBLIC $<$<CONFIG:Debug>:-O0>)
if(TARGET dtensor_testing)
  target_link_libraries(dtensor_test_headers PUBLIC dtensor::testing)
endif()

function(dtensor_test_sources target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  dtensor_reads_precompiled(${target} dtensor_test_headers)
endfunction()

add_library(dtensor_test_main OBJECT ${PROJECT_SOURCE_DIR}/tests/main.cpp)
dtensor_test_sources(dtensor_test_main)

function(dtensor_test_program target)
  add_executable(${target} ${ARGN})
  dtensor_test_sources(${target})
  target_compile_definitions(${target} PRIVATE TEST_SOURCE=)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ${DTENSOR_TEST_UNITY} UNITY_BUILD_UNIQUE_ID TEST_SOURCE)
endfunction()

function(dtensor_test layer)
  cmake_parse_arguments(PARSE_ARGV 1 arg "EACH" "" "")
  set(target dtensor_${layer}_tests)
  dtensor_test_program(${target} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${target} PRIVATE dtensor_test_main)
  if(DTENSOR_TEST_EACH AND arg_EACH)
    gtest_discover_tests(${target}
      TEST_PREFIX "${layer}."
      DISCOVERY_MODE PRE_TEST
      DISCOVERY_TIMEOUT 120
      PROPERTIES TIMEOUT 300 LABELS "${layer}")
  elseif(DTENSOR_TEST_EACH)
    set(suites ${CMAKE_CURRENT_BINARY_DIR}/${target}_suites.cmake)
    configure_file(
      ${PROJECT_SOURCE_DIR}/cmake/gtest_suites.cmake.in ${suites} @ONLY)
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${suites})
  else()
    add_test(NAME ${layer} COMMAND ${target})
    set_tests_properties(${layer} PROPERTIES TIMEOUT 1800 LABELS "${layer}")
  endif()
endfunction()
