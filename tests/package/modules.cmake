# Configures, builds and runs a project with the modules, with only an
# installation and LibTorch.
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)

run_against_installation(modules modules)
