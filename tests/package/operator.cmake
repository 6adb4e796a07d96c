# Configures, builds and runs a project that registers an operator and its rule,
# with only an installation and LibTorch.
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)

run_against_installation(operator scale_rows)
