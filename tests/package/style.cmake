# Configures, builds and runs a project with its own parallel style, with only
# an installation and LibTorch.
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)

run_against_installation(style lora)
