# Finds the LibTorch that find_package(Torch) would use, and reports problems
# with it before LibTorch's own files fail. Lets a LibTorch for CUDA be used
# without a CUDA toolkit. Used by this build and by find_package(dtensor).
include(FindPackageMessage)

# dtensor_find_torch(<oldest>): looks without loading anything, or at the target
# torch if it exists, and sets
#   dtensor_torch_root     its folder; empty if there is none
#   dtensor_torch_version  version, such as 2.13.0
#   dtensor_torch_kind     CPU, or CUDA with its version if that is known
function(dtensor_find_torch oldest)
  if(TARGET torch)
    get_target_property(includes torch INTERFACE_INCLUDE_DIRECTORIES)
    list(GET includes 0 include)
    set(configs ${include}/../share/cmake/Torch/TorchConfig.cmake)
  else()
    # Asks for an impossible version, so that CMake lists the candidates without
    # loading one.
    set(given "${Torch_DIR}")
    find_package(Torch 99999 QUIET CONFIG)
    set(configs ${Torch_CONSIDERED_CONFIGS})
    unset(Torch_DIR CACHE)
    if(given)
      set(Torch_DIR ${given} CACHE PATH "Where TorchConfig.cmake is")
    endif()
  endif()
  foreach(name root version kind)
    set(dtensor_torch_${name} "" PARENT_SCOPE)
  endforeach()
  foreach(config ${configs})
    string(REPLACE Config.cmake ConfigVersion.cmake version_file ${config})
    dtensor_text_of(version ${version_file} "PACKAGE_VERSION \"([0-9.]+)")
    if(version AND NOT version VERSION_LESS oldest)
      cmake_path(SET root NORMALIZE ${config}/../../../..)
      string(REGEX REPLACE "/$" "" root ${root})
      dtensor_torch_kind_of(kind ${root})
      foreach(name root version kind)
        set(dtensor_torch_${name} ${${name}} PARENT_SCOPE)
      endforeach()
      return()
    endif()
  endforeach()
endfunction()

# Returns the match of the expression's first group in a file, if the file
# exists.
function(dtensor_text_of out file expression)
  set(text)
  if(EXISTS ${file})
    file(STRINGS ${file} text REGEX "${expression}" LIMIT_COUNT 1)
  endif()
  string(REGEX MATCH "${expression}" text "${text}")
  set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

# Python's torch package has its CUDA version in version.py, a LibTorch archive
# in build-version, as in 2.13.0+cu130.
function(dtensor_torch_kind_of out root)
  file(GLOB libraries ${root}/lib/*torch_cuda.*)
  if(NOT libraries)
    set(${out} CPU PARENT_SCOPE)
    return()
  endif()
  dtensor_text_of(cuda ${root}/version.py "^cuda.*'([0-9.]+)'")
  if(NOT cuda)
    dtensor_text_of(cuda ${root}/build-version "\\+cu([0-9]+)")
    string(REGEX REPLACE "([0-9])$" ".\\1" cuda "${cuda}")
  endif()
  string(STRIP "CUDA ${cuda}" kind)
  set(${out} ${kind} PARENT_SCOPE)
endfunction()

# dtensor_cuda_problem(<out>): prepares CMake for the LibTorch found above, and
# returns why that is impossible; empty if it is possible. The CMake files of a
# LibTorch for CUDA load the CUDA toolkit, unless the target torch::cudart
# exists. With a toolkit of the same major version, this function sets its
# folder. (CMake looks for the toolkit beside the first nvcc, which may be a
# script that calls an nvcc elsewhere.) Otherwise it sets dtensor_cudart, the
# libcudart that LibTorch came with, for dtensor_define_cudart().
function(dtensor_cuda_problem out)
  set(${out} "" PARENT_SCOPE)
  set(dtensor_cudart "" PARENT_SCOPE)
  if(NOT dtensor_torch_kind MATCHES "^CUDA" OR TARGET torch
      OR TARGET torch::cudart)
    return()
  endif()
  dtensor_find_toolkit()
  string(REGEX MATCH "[0-9]+" major "${dtensor_torch_kind}")
  if(NOT nvcc)
    set(found "nvcc not found in CUDACXX, CUDA_HOME, PATH or /usr/local/cuda")
  elseif(major AND NOT toolkit_version MATCHES "^${major}\\.")
    set(found "${nvcc} belongs to CUDA ${toolkit_version}")
  elseif(NOT toolkit)
    set(found "cuda_runtime.h and libcudart not found for ${nvcc}")
  else()
    if(NOT CUDA_TOOLKIT_ROOT_DIR)
      set(CUDA_TOOLKIT_ROOT_DIR ${toolkit} CACHE PATH "For LibTorch" FORCE)
    endif()
    if(NOT CMAKE_CUDA_COMPILER)
      set(CMAKE_CUDA_COMPILER ${nvcc} CACHE FILEPATH "For LibTorch" FORCE)
    endif()
    return()
  endif()
  # Packages of pip, or the libraries of a LibTorch archive.
  file(GLOB libraries
    ${dtensor_torch_root}/../nvidia/*/lib/libcudart*.so.${major}*
    ${dtensor_torch_root}/lib/libcudart*.so.${major}*)
  if(libraries)
    list(GET libraries 0 library)
    cmake_path(NORMAL_PATH library)
    set(dtensor_cudart ${library} PARENT_SCOPE)
    find_package_message(dtensor_cuda
      "[dtensor] LibTorch's own ${library} is used without a CUDA toolkit: ${found}"
      "${library} ${found}")
    return()
  endif()
  string(CONCAT problem
    "[dtensor] LibTorch ${dtensor_torch_version} in ${dtensor_torch_root} is "
    "built for ${dtensor_torch_kind}, but has no libcudart of that version, neither "
    "in its lib folder nor in an nvidia package beside it. CMake therefore needs "
    "the CUDA toolkit of that version: "
    "${found}. Install it and set CUDA_HOME, or get a LibTorch for the "
    "CPU (pip install torch==${dtensor_torch_version}+cpu, from PyTorch's index "
    "of CPU builds) and add that to CMAKE_PREFIX_PATH.")
  set(${out} "${problem}" PARENT_SCOPE)
endfunction()

# Defines torch::cudart from dtensor_cudart, if that is set. LibTorch's own files
# define all other targets. The linker and the loader find the libraries that
# libtorch_cuda needs by its run path.
function(dtensor_define_cudart)
  if(NOT dtensor_cudart OR TARGET torch::cudart)
    return()
  endif()
  add_library(torch::cudart SHARED IMPORTED GLOBAL)
  set_target_properties(torch::cudart PROPERTIES
    IMPORTED_LOCATION ${dtensor_cudart})
  cmake_path(SET include NORMALIZE ${dtensor_cudart}/../../include)
  if(EXISTS ${include}/cuda_runtime_api.h)
    set_target_properties(torch::cudart PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES ${include})
  endif()
endfunction()

# Sets nvcc, toolkit_version, and toolkit, the folder with nvcc's own headers and
# libcudart.
function(dtensor_find_toolkit)
  set(given ${CMAKE_CUDA_COMPILER})
  if(NOT given)
    set(given $ENV{CUDACXX})
  endif()
  if(given)
    find_program(nvcc ${given} NO_CACHE)
  else()
    find_program(nvcc nvcc NO_CACHE
      HINTS ${CUDA_TOOLKIT_ROOT_DIR} ${CUDAToolkit_ROOT} $ENV{CUDAToolkit_ROOT}
        $ENV{CUDA_HOME} $ENV{CUDA_PATH}
      PATHS /usr/local/cuda
      PATH_SUFFIXES bin)
  endif()
  set(nvcc ${nvcc} PARENT_SCOPE)
  set(toolkit_version "" PARENT_SCOPE)
  set(toolkit "" PARENT_SCOPE)
  if(NOT nvcc)
    return()
  endif()
  execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" text "${text}")
  set(toolkit_version "${CMAKE_MATCH_1}" PARENT_SCOPE)
  execute_process(COMMAND ${nvcc} -v --dryrun x OUTPUT_QUIET ERROR_VARIABLE text)
  string(REGEX MATCH "TOP=([^\r\n]+)" text "${text}")
  foreach(root ${CMAKE_MATCH_1} ${nvcc}/../..)
    cmake_path(SET root NORMALIZE ${root})
    string(REGEX REPLACE "/$" "" root ${root})
    file(GLOB headers ${root}/include/cuda_runtime.h
      ${root}/targets/*/include/cuda_runtime.h)
    file(GLOB libraries ${root}/lib*/libcudart.so ${root}/lib/*/libcudart.so
      ${root}/targets/*/lib/libcudart.so)
    if(headers AND libraries)
      set(toolkit ${root} PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# dtensor_torch_problem(<out> <version> <kind>): why a dtensor built for that
# LibTorch cannot be used with the one found above; empty if it can. Minor
# versions of LibTorch change types that dtensor contains. A dtensor built with
# a LibTorch for any CUDA version needs libtorch_cuda.
function(dtensor_torch_problem out version kind)
  set(${out} "" PARENT_SCOPE)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor ${version})
  set(built "[dtensor] is built for LibTorch ${version} (${kind}), but CMake finds")
  if(NOT dtensor_torch_root)
    set(${out} "${built} no LibTorch. Add one to CMAKE_PREFIX_PATH." PARENT_SCOPE)
    return()
  endif()
  string(FIND "${dtensor_torch_version}." "${minor}." at)
  string(REGEX MATCH "CUDA" cuda ${kind})
  if(NOT at EQUAL 0 OR NOT dtensor_torch_kind MATCHES "^${cuda}")
    string(CONCAT problem "${built} ${dtensor_torch_version} "
      "(${dtensor_torch_kind}) in ${dtensor_torch_root}. Add a LibTorch ${minor} "
      "(${kind}) to CMAKE_PREFIX_PATH, or build dtensor for the LibTorch found.")
    set(${out} "${problem}" PARENT_SCOPE)
  endif()
endfunction()
