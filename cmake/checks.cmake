# Lints as test cases; in a full build also dtensor_header_checks, which
# compiles every public header alone.
find_package(Python3 REQUIRED COMPONENTS Interpreter)

foreach(lint layers headers prose workflows)
  add_test(NAME lint.${lint}
    COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/check_${lint}.py)
  set_tests_properties(lint.${lint} PROPERTIES LABELS lint)
endforeach()

# Tests the lints with sources that they must refuse and sources that they must
# accept.
add_test(NAME lint.lints
  COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tests/lints/lints_test.py)
set_tests_properties(lint.lints PROPERTIES LABELS lint)

add_test(NAME lint.snippets_doc
  COMMAND Python3::Interpreter ${PROJECT_SOURCE_DIR}/tools/snippets_doc.py --check)
set_tests_properties(lint.snippets_doc PROPERTIES LABELS lint)

# dtensor_lint_by(<program> <name> <arguments>...): a lint by a program that
# tools/setup.sh installs in .venv. Without the program it is reported as
# skipped.
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

# Reads Python's package, in the version that its rows are for.
dtensor_lint_by(python api ${PROJECT_SOURCE_DIR}/tools/check_api.py)
set_tests_properties(lint.api PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 120)

# Limits the length of functions, because longer ones mix several ideas. Lists
# may be long.
dtensor_lint_by(lizard functions --languages cpp --length 40 --CCN 23
  --warnings_only --whitelist ${PROJECT_SOURCE_DIR}/tools/long_functions.txt
  ${PROJECT_SOURCE_DIR}/dtensor ${PROJECT_SOURCE_DIR}/launcher
  ${PROJECT_SOURCE_DIR}/python)

# Checks that every source is formatted as by `make format`. Versions of
# clang-format differ, so the version that tools/setup.sh installs is used.
file(GLOB_RECURSE formatted CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/benchmarks/*.cpp ${PROJECT_SOURCE_DIR}/benchmarks/*.h
  ${PROJECT_SOURCE_DIR}/dtensor/*.cpp ${PROJECT_SOURCE_DIR}/dtensor/*.h
  ${PROJECT_SOURCE_DIR}/examples/*.cpp ${PROJECT_SOURCE_DIR}/examples/*.h
  ${PROJECT_SOURCE_DIR}/launcher/*.cpp ${PROJECT_SOURCE_DIR}/launcher/*.h
  ${PROJECT_SOURCE_DIR}/python/*.cpp ${PROJECT_SOURCE_DIR}/python/*.h
  ${PROJECT_SOURCE_DIR}/tests/*.cpp ${PROJECT_SOURCE_DIR}/tests/*.h)
dtensor_lint_by(clang-format format --dry-run -Werror ${formatted})

include(${CMAKE_CURRENT_LIST_DIR}/header_checks.cmake)
