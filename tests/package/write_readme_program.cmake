# Writes the first program of README.md in `source` to `path`.
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)
write_readme_program(${path} ${source})
