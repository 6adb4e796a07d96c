# The lints as test cases; and, in a full build, dtensor_header_checks:
# every public header compiles alone.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

foreach(lint layers headers)
  add_test(NAME lint.${lint}
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/check_${lint}.py)
  set_tests_properties(lint.${lint} PROPERTIES LABELS lint)
endforeach()

foreach(doc errors operators headers snippets)
  add_test(NAME lint.${doc}_doc
    COMMAND Python3::Interpreter
      ${PROJECT_SOURCE_DIR}/tools/${doc}_doc.py --check)
  set_tests_properties(lint.${doc}_doc PROPERTIES LABELS lint)
endforeach()

# Reads Python's package, of the version that its rows are for.
set(python_with_torch ${PROJECT_SOURCE_DIR}/.venv/bin/python)
if(EXISTS ${python_with_torch})
  add_test(NAME lint.api_doc
    COMMAND ${python_with_torch} ${PROJECT_SOURCE_DIR}/tools/api_doc.py --check)
  set_tests_properties(lint.api_doc PROPERTIES
    LABELS lint SKIP_RETURN_CODE 77 TIMEOUT 120)
endif()

# Functions longer than this mix several ideas. Lists are as long as they are.
# tools/setup.sh installs lizard where it makes .venv.
set(lizard ${PROJECT_SOURCE_DIR}/.venv/bin/lizard)
if(EXISTS ${lizard})
  add_test(NAME lint.functions
    COMMAND ${lizard} --languages cpp --length 50 --CCN 23 --warnings_only
      --whitelist ${PROJECT_SOURCE_DIR}/tools/long_functions.txt
      ${PROJECT_SOURCE_DIR}/dtensor ${PROJECT_SOURCE_DIR}/launcher)
  set_tests_properties(lint.functions PROPERTIES LABELS lint)
endif()

# Every source is as `make format` leaves it. Versions of clang-format differ in
# what they do, so it is the one that tools/setup.sh installs there.
set(clang_format ${PROJECT_SOURCE_DIR}/.venv/bin/clang-format)
if(EXISTS ${clang_format})
  file(GLOB_RECURSE formatted CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/benchmarks/*.cpp ${PROJECT_SOURCE_DIR}/benchmarks/*.h
    ${PROJECT_SOURCE_DIR}/dtensor/*.cpp ${PROJECT_SOURCE_DIR}/dtensor/*.h
    ${PROJECT_SOURCE_DIR}/examples/*.cpp ${PROJECT_SOURCE_DIR}/examples/*.h
    ${PROJECT_SOURCE_DIR}/launcher/*.cpp ${PROJECT_SOURCE_DIR}/launcher/*.h
    ${PROJECT_SOURCE_DIR}/tests/*.cpp ${PROJECT_SOURCE_DIR}/tests/*.h)
  add_test(NAME lint.format
    COMMAND ${clang_format} --dry-run -Werror ${formatted})
  set_tests_properties(lint.format PROPERTIES LABELS lint)
endif()

add_custom_target(dtensor_header_checks ALL)
add_dependencies(dtensor_header_checks all_verify_interface_header_sets)
