# The lints as test cases; and, in a full build, dtensor_header_checks:
# every public header compiles alone.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

foreach(lint layers headers)
  add_test(NAME lint.${lint}
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/check_${lint}.py)
  set_tests_properties(lint.${lint} PROPERTIES LABELS lint)
endforeach()

# Made-up sources that they refuse, and like ones that they let pass.
add_test(NAME lint.lints
  COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/lints/lints_test.py)
set_tests_properties(lint.lints PROPERTIES LABELS lint)

foreach(doc errors operators headers snippets)
  add_test(NAME lint.${doc}_doc
    COMMAND Python3::Interpreter
      ${PROJECT_SOURCE_DIR}/tools/${doc}_doc.py --check)
  set_tests_properties(lint.${doc}_doc PROPERTIES LABELS lint)
endforeach()

# A lint whose program tools/setup.sh installs in .venv: skipped, and said to be,
# without it.
function(dtensor_lint_by program name)
  set(path ${PROJECT_SOURCE_DIR}/.venv/bin/${program})
  if(EXISTS ${path})
    add_test(NAME lint.${name} COMMAND ${path} ${ARGN})
  else()
    add_test(NAME lint.${name} COMMAND ${CMAKE_COMMAND} -E echo
      "skipped: no .venv/bin/${program}; tools/setup.sh makes .venv")
  endif()
  set_tests_properties(lint.${name} PROPERTIES LABELS lint
    SKIP_REGULAR_EXPRESSION "skipped: no ")
endfunction()

# Reads Python's package, of the version that its rows are for.
dtensor_lint_by(python api_doc ${PROJECT_SOURCE_DIR}/tools/api_doc.py --check)
set_tests_properties(lint.api_doc PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 120)

# Functions longer than this mix several ideas. Lists are as long as they are.
dtensor_lint_by(lizard functions --languages cpp --length 40 --CCN 23
  --warnings_only --whitelist ${PROJECT_SOURCE_DIR}/tools/long_functions.txt
  ${PROJECT_SOURCE_DIR}/dtensor ${PROJECT_SOURCE_DIR}/launcher)

# Every source is as `make format` leaves it. Versions of clang-format differ in
# what they do, so it is the one that tools/setup.sh installs there.
file(GLOB_RECURSE formatted CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/benchmarks/*.cpp ${PROJECT_SOURCE_DIR}/benchmarks/*.h
  ${PROJECT_SOURCE_DIR}/dtensor/*.cpp ${PROJECT_SOURCE_DIR}/dtensor/*.h
  ${PROJECT_SOURCE_DIR}/examples/*.cpp ${PROJECT_SOURCE_DIR}/examples/*.h
  ${PROJECT_SOURCE_DIR}/launcher/*.cpp ${PROJECT_SOURCE_DIR}/launcher/*.h
  ${PROJECT_SOURCE_DIR}/tests/*.cpp ${PROJECT_SOURCE_DIR}/tests/*.h)
dtensor_lint_by(clang-format format --dry-run -Werror ${formatted})

include(${CMAKE_CURRENT_LIST_DIR}/header_checks.cmake)
