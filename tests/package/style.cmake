# Configures, builds and runs a foreign project with a module style of its own,
# with nothing but an installation and LibTorch.
include(${CMAKE_CURRENT_LIST_DIR}/common.cmake)

run_against_installation(style lora)
