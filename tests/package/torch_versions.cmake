# Tests CMake's errors for an incompatible LibTorch. The LibTorch and CUDA
# toolkits here are folders that contain only the files that are read.
cmake_minimum_required(VERSION 3.25)
include(${dtensor_source}/cmake/dtensorTorch.cmake)

file(REMOVE_RECURSE ${work})

# Hides the packages of this machine.
foreach(place CMAKE_ENVIRONMENT_PATH CMAKE_SYSTEM_PATH
    SYSTEM_ENVIRONMENT_PATH PACKAGE_REGISTRY PACKAGE_ROOT_PATH)
  set(CMAKE_FIND_USE_${place} OFF)
endforeach()

# Makes a LibTorch in ${work}/<name>; if a CUDA version is given, one for CUDA.
function(make_torch name version cuda)
  set(root ${work}/${name})
  file(WRITE ${root}/share/cmake/Torch/TorchConfig.cmake
    "message(FATAL_ERROR \"LibTorch was loaded\")\n")
  file(WRITE ${root}/share/cmake/Torch/TorchConfigVersion.cmake
    "set(PACKAGE_VERSION \"${version}\")\nset(PACKAGE_VERSION_COMPATIBLE FALSE)\n")
  if(cuda)
    file(WRITE ${root}/version.py "cuda: Optional[str] = '${cuda}'\n")
    file(WRITE ${root}/lib/libtorch_cuda.so "")
  endif()
endfunction()

# Makes a toolkit in ${work}/<name> with an nvcc that reports another folder,
# <name>_top.
function(make_toolkit name version)
  file(WRITE ${work}/${name}/bin/nvcc "#!/bin/sh\n"
    "echo 'Cuda compilation tools, release ${version}, V${version}.1'\n"
    "echo '#$ TOP=${work}/${name}_top/bin/..' >&2\n")
  file(CHMOD ${work}/${name}/bin/nvcc
    PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

function(expect_equal what text wanted)
  if(NOT text STREQUAL wanted)
    message(SEND_ERROR "${what}:\n  ${text}\nnot\n  ${wanted}")
  endif()
endfunction()

# Expects this error for the LibTorch with this name and this nvcc.
function(expect_cuda_problem name toolkit wanted)
  set(CMAKE_PREFIX_PATH ${work}/${name})
  set(ENV{CUDACXX} ${work}/${toolkit}/bin/nvcc)
  dtensor_find_torch(0)
  dtensor_cuda_problem(problem)
  expect_equal("${name} with ${toolkit}" "${problem}" "${wanted}")
  set(toolkit_root "${CUDA_TOOLKIT_ROOT_DIR}" PARENT_SCOPE)
  set(cudart "${dtensor_cudart}" PARENT_SCOPE)
  foreach(name CUDA_TOOLKIT_ROOT_DIR CMAKE_CUDA_COMPILER)
    unset(${name} CACHE)
  endforeach()
endfunction()

make_torch(old 2.10.1 "")
make_torch(cpu 2.13.0 "")
make_torch(cuda 2.12.1 13.0)
make_torch(archive 2.11.0 12.8)
file(REMOVE ${work}/archive/version.py)
file(WRITE ${work}/archive/build-version "2.11.0+cu128\n")

# Takes the first that is new enough, as find_package does.
set(CMAKE_PREFIX_PATH ${work}/old ${work}/archive ${work}/cpu)
dtensor_find_torch(2.11)
expect_equal("the first" "${dtensor_torch_root}" ${work}/archive)
expect_equal("its version" "${dtensor_torch_version}" 2.11.0)
expect_equal("its kind" "${dtensor_torch_kind}" "CUDA 12.8")
set(Torch_DIR ${work}/cpu/share/cmake/Torch CACHE PATH "")
dtensor_find_torch(2.11)
expect_equal("the one named" "${dtensor_torch_root}" ${work}/cpu)
expect_equal("its name" "${Torch_DIR}" ${work}/cpu/share/cmake/Torch)
unset(Torch_DIR CACHE)

# Problems with the CUDA toolkit.
string(CONCAT needs "[dtensor] LibTorch 2.12.1 in ${work}/cuda is built for CUDA "
  "13.0, but has no libcudart of that version, neither in its lib folder nor in "
  "an nvidia package beside it. CMake therefore needs the CUDA toolkit of that "
  "version: ")
string(CONCAT remedy ". Install it and set CUDA_HOME, or get a LibTorch "
  "for the CPU (pip install torch==2.12.1+cpu, from PyTorch's index of CPU "
  "builds) and add that to CMAKE_PREFIX_PATH.")
make_toolkit(older 12.4)
make_toolkit(bare 13.0)
make_toolkit(headers 13.0)
file(WRITE ${work}/headers_top/include/cuda_runtime.h "")
make_toolkit(whole 13.1)
file(WRITE ${work}/whole_top/include/cuda_runtime.h "")
file(WRITE ${work}/whole_top/lib64/libcudart.so "")
expect_cuda_problem(cpu none "")
expect_cuda_problem(cuda none
  "${needs}nvcc not found in CUDACXX, CUDA_HOME, PATH or /usr/local/cuda${remedy}")
expect_cuda_problem(cuda older
  "${needs}${work}/older/bin/nvcc belongs to CUDA 12.4${remedy}")
foreach(toolkit bare headers)
  expect_cuda_problem(cuda ${toolkit}
    "${needs}cuda_runtime.h and libcudart not found for ${work}/${toolkit}/bin/nvcc${remedy}")
endforeach()
expect_cuda_problem(cuda whole "")
expect_equal("the toolkit" "${toolkit_root}" ${work}/whole_top)
expect_equal("libcudart beside the toolkit" "${cudart}" "")

# LibTorch's own libcudart replaces the toolkit. Packages of another CUDA version
# are ignored.
file(WRITE ${work}/nvidia/cuda_runtime/lib/libcudart.so.12 "")
expect_cuda_problem(cuda older
  "${needs}${work}/older/bin/nvcc belongs to CUDA 12.4${remedy}")
file(WRITE ${work}/nvidia/cu13/lib/libcudart.so.13 "")
foreach(toolkit none older bare)
  expect_cuda_problem(cuda ${toolkit} "")
  expect_equal("libcudart with ${toolkit}"
    "${cudart}" ${work}/nvidia/cu13/lib/libcudart.so.13)
  expect_equal("the toolkit ${toolkit}" "${toolkit_root}" "")
endforeach()
expect_cuda_problem(cuda whole "")
expect_equal("a toolkit that fits" "${toolkit_root} ${cudart}" "${work}/whole_top ")
expect_cuda_problem(cpu none "")
expect_equal("libcudart for the CPU" "${cudart}" "")
file(REMOVE_RECURSE ${work}/nvidia)
file(WRITE ${work}/archive/lib/libcudart-1234.so.12 "")
expect_cuda_problem(archive none "")
expect_equal("libcudart of an archive"
  "${cudart}" ${work}/archive/lib/libcudart-1234.so.12)

# Expects this error for a dtensor built for one LibTorch and used with another.
function(expect_mismatch version kind torch wanted)
  set(dtensor_torch_version ${version})
  set(dtensor_torch_kind ${kind})
  configure_file(${dtensor_source}/cmake/dtensorConfig.cmake.in
    ${work}/dtensor/dtensorConfig.cmake @ONLY)
  file(COPY ${dtensor_source}/cmake/dtensorTorch.cmake DESTINATION ${work}/dtensor)
  set(CMAKE_PREFIX_PATH ${work}/${torch})
  find_package(dtensor QUIET CONFIG PATHS ${work}/dtensor NO_DEFAULT_PATH)
  if(dtensor_FOUND)
    message(SEND_ERROR "${version} ${kind} was found with ${torch}")
  endif()
  expect_equal("what it is built for"
    "${dtensor_TORCH_VERSION} ${dtensor_TORCH_KIND}" "${version} ${kind}")
  expect_equal("${version} ${kind} with ${torch}"
    "${dtensor_NOT_FOUND_MESSAGE}" "${wanted}")
  unset(dtensor_DIR CACHE)
endfunction()

expect_mismatch(2.13.0 CPU cuda
  "[dtensor] is built for LibTorch 2.13.0 (CPU), but CMake finds 2.12.1 (CUDA 13.0) in ${work}/cuda. Add a LibTorch 2.13 (CPU) to CMAKE_PREFIX_PATH, or build dtensor for the LibTorch found.")
expect_mismatch(2.13.1 "CUDA 13.0" cpu
  "[dtensor] is built for LibTorch 2.13.1 (CUDA 13.0), but CMake finds 2.13.0 (CPU) in ${work}/cpu. Add a LibTorch 2.13 (CUDA 13.0) to CMAKE_PREFIX_PATH, or build dtensor for the LibTorch found.")
expect_mismatch(2.1.0 CPU cpu
  "[dtensor] is built for LibTorch 2.1.0 (CPU), but CMake finds 2.13.0 (CPU) in ${work}/cpu. Add a LibTorch 2.1 (CPU) to CMAKE_PREFIX_PATH, or build dtensor for the LibTorch found.")
expect_mismatch(2.13.0 CPU none
  "[dtensor] is built for LibTorch 2.13.0 (CPU), but CMake finds no LibTorch. Add one to CMAKE_PREFIX_PATH.")

# A compatible LibTorch is loaded.
foreach(pair "2.13.1;CPU;cpu" "2.12.0;CPU;cuda" "2.12.0;CUDA 12.8;cuda")
  list(GET pair 0 version)
  list(GET pair 1 kind)
  list(GET pair 2 torch)
  set(CMAKE_PREFIX_PATH ${work}/${torch})
  dtensor_find_torch(0)
  dtensor_torch_problem(problem ${version} ${kind})
  expect_equal("${pair}" "${problem}" "")
endforeach()
