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

# dtensor_tests_python: true if that Python also has pytest and its own headers,
# and belongs to this LibTorch, so that the Python package can be tested.
set(dtensor_tests_python OFF)
if(dtensor_exports AND EXISTS ${TORCH_INSTALL_PREFIX}/lib/libtorch_python.so)
  execute_process(
    COMMAND ${dtensor_torch_python} -c
      "import importlib.util, os, sys, sysconfig
header = os.path.join(sysconfig.get_paths()['include'], 'Python.h')
sys.exit(not (importlib.util.find_spec('pytest') and os.path.exists(header)
              and sys.version_info >= (3, 10)))"
    RESULT_VARIABLE no_pytest ERROR_QUIET)
  if(NOT no_pytest)
    set(dtensor_tests_python ON)
  endif()
endif()
if(NOT dtensor_tests_python)
  message(STATUS "dtensor: the Python package is not built by default: no Python with PyTorch, pytest and Python.h found")
endif()
