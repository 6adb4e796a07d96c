# dtensor_torch_python: the Python that LibTorch came with, or any.
# <prefix>/lib/pythonX.Y/site-packages/torch belongs to <prefix>/bin/python3.
get_filename_component(dtensor_torch_python
  ${TORCH_INSTALL_PREFIX}/../../../../bin/python3 ABSOLUTE)
if(NOT EXISTS ${dtensor_torch_python})
  set(dtensor_torch_python python3)
endif()
