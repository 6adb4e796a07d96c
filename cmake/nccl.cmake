# NCCL of a LibTorch for CUDA. Its ProcessGroupNCCL.hpp includes nccl.h and
# headers of CUDA's libraries. These are in the packages beside Python's torch,
# in LibTorch's archive, in the toolkit or in the distribution.

set(dtensor_nccl_problem "it is for the CPU")
if(dtensor_torch_kind MATCHES "^CUDA")
  file(GLOB packages ${dtensor_torch_root}/../nvidia/*/include)
  set(places ${packages} ${CUDA_TOOLKIT_ROOT_DIR}/include
    ${dtensor_torch_root}/include)
  set(dtensor_nccl_problem)
  set(headers nccl.h cusparse.h cuda_runtime.h crt/host_defines.h)
  foreach(header ${headers})
    string(REGEX REPLACE "[./][a-z_.]+" "" name ${header})
    string(TOUPPER DTENSOR_${name}_INCLUDE variable)
    find_path(${variable} ${header} HINTS ${places})
    list(APPEND found ${${variable}})
    if(NOT ${variable} AND NOT dtensor_nccl_problem)
      set(dtensor_nccl_problem "${header} not found (set ${variable})")
    endif()
  endforeach()
  # pip installs the headers of the CUDA runtime without those in crt.
  if(NOT DTENSOR_CRT_INCLUDE AND packages)
    string(APPEND dtensor_nccl_problem
      ". `pip install cuda-toolkit[crt]` adds these headers")
  endif()
endif()

if(dtensor_nccl_problem)
  message(STATUS "NCCL: disabled, ${dtensor_nccl_problem}")
  target_sources(dtensor_core PRIVATE ${DTENSOR_NO_NCCL_SOURCES})
  return()
endif()
message(STATUS "NCCL: enabled (LibTorch's), nccl.h in ${DTENSOR_NCCL_INCLUDE}")
target_sources(dtensor_core PRIVATE ${DTENSOR_NCCL_SOURCES})
set(options)
list(REMOVE_DUPLICATES found)
foreach(folder ${found} ${packages})
  list(APPEND options -isystem ${folder})
endforeach()
set_source_files_properties(${DTENSOR_NCCL_SOURCES} PROPERTIES
  COMPILE_DEFINITIONS USE_C10D_NCCL COMPILE_OPTIONS "${options}")
