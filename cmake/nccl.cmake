# NCCL of a LibTorch for CUDA. Its ProcessGroupNCCL.hpp includes nccl.h and
# headers of CUDA's libraries. These are in the packages beside Python's torch,
# in LibTorch's archive, in the toolkit or in the distribution.

set(dtensor_nccl_problem "it is for the CPU")
if(dtensor_torch_kind MATCHES "^CUDA")
  file(GLOB packages ${dtensor_torch_root}/../nvidia/*/include)
  set(places ${packages} ${CUDA_TOOLKIT_ROOT_DIR}/include
    ${dtensor_torch_root}/include)
  find_path(DTENSOR_NCCL_INCLUDE nccl.h HINTS ${places})
  find_path(DTENSOR_CUSPARSE_INCLUDE cusparse.h HINTS ${places})
  set(dtensor_nccl_problem)
  foreach(header nccl cusparse)
    string(TOUPPER DTENSOR_${header}_INCLUDE variable)
    if(NOT ${variable})
      set(dtensor_nccl_problem "${header}.h not found (set ${variable})")
    endif()
  endforeach()
endif()

if(dtensor_nccl_problem)
  message(STATUS "NCCL: disabled, ${dtensor_nccl_problem}")
  target_sources(dtensor_core PRIVATE ${DTENSOR_NO_NCCL_SOURCES})
  return()
endif()
message(STATUS "NCCL: enabled (LibTorch's), nccl.h in ${DTENSOR_NCCL_INCLUDE}")
target_sources(dtensor_core PRIVATE ${DTENSOR_NCCL_SOURCES})
set(options)
foreach(folder ${DTENSOR_NCCL_INCLUDE} ${DTENSOR_CUSPARSE_INCLUDE} ${packages})
  list(APPEND options -isystem ${folder})
endforeach()
set_source_files_properties(${DTENSOR_NCCL_SOURCES} PROPERTIES
  COMPILE_DEFINITIONS USE_C10D_NCCL COMPILE_OPTIONS "${options}")
