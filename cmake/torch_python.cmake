# dtensor_torch_python: the Python that LibTorch came with, or any.
# <prefix>/lib/pythonX.Y/site-packages/torch belongs to <prefix>/bin/python3.
get_filename_component(dtensor_torch_python
  ${TORCH_INSTALL_PREFIX}/../../../../bin/python3 ABSOLUTE)
if(NOT EXISTS ${dtensor_torch_python})
  set(dtensor_torch_python python3)
endif()
# dtensor_exports: true if that Python has PyTorch, so that tests can export
# programs.
execute_process(
  COMMAND ${dtensor_torch_python} -c
    "import importlib.util, sys; sys.exit(not importlib.util.find_spec('torch'))"
  RESULT_VARIABLE no_torch ERROR_QUIET)
set(dtensor_exports ON)
if(no_torch)
  set(dtensor_exports OFF)
  message(STATUS "dtensor: tests of exported programs are disabled: no Python with PyTorch found")
endif()
