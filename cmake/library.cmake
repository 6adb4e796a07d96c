# The targets dtensor::core, dtensor::dtensor and dtensor::testing, and the
# modules dtensor::legacy_tp and dtensor::torchscript.

include(GNUInstallDirs)

# Disables false warnings of GCC: 12 says in optimized code that c10::SmallVector
# may be uninitialized and that "text" + std::string copies too much, 14 that
# references into specs dangle.
function(dtensor_warnings target)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wpedantic -Wshadow -Wconversion
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
    $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,13>>:-Wno-dangling-reference>)
endfunction()

# Required by ccache.
set(dtensor_precompiled_flags
  $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>
  "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")

# dtensor_precompiled(<target> <headers>...): a target with a precompiled
# header. dtensor_reads_precompiled(<user> <target>) makes a user read it.
# Sources still include all headers that they use. Users need the flags that the
# headers were compiled with.
function(dtensor_precompiled target)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${target}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "// Has the precompiled header.\n")
  add_library(${target} OBJECT ${source})
  target_link_libraries(${target} PUBLIC dtensor::core)
  target_precompile_headers(${target} PRIVATE ${ARGN})
  dtensor_warnings(${target})
  target_compile_options(${target} PUBLIC ${dtensor_precompiled_flags})
endfunction()

function(dtensor_reads_precompiled user target)
  target_link_libraries(${user} PRIVATE ${target})
  target_precompile_headers(${user} REUSE_FROM ${target})
  dtensor_warnings(${user})
endfunction()

# Shared unless BUILD_SHARED_LIBS is off.
if(DEFINED BUILD_SHARED_LIBS AND NOT BUILD_SHARED_LIBS)
  set(dtensor_kind STATIC)
else()
  set(dtensor_kind SHARED)
endif()

# Forces the linker to keep the file that registers operators. Programs do not
# refer to it, so it would be left out of a static library.
function(dtensor_link_operators target)
  target_link_options(${target} INTERFACE "LINKER:-u,dtensor_operators")
endfunction()

# dtensor_library(<name> HEADERS ... SOURCES ...): the target dtensor_<name>,
# with the alias dtensor::<name> here and after install. Each header must
# compile alone, which dtensor_header_checks verifies.
function(dtensor_library name)
  cmake_parse_arguments(arg "" "" "HEADERS;SOURCES" ${ARGN})
  set(target dtensor_${name})
  add_library(${target} ${dtensor_kind})
  add_library(dtensor::${name} ALIAS ${target})
  target_sources(${target}
    PRIVATE ${arg_SOURCES}
    PUBLIC FILE_SET HEADERS
      BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${arg_HEADERS})
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name}
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
    POSITION_INDEPENDENT_CODE ON)
  if(NOT DTENSOR_EXPORT_INTERNALS)
    set_target_properties(${target} PROPERTIES
      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  endif()
  # Names only libraries that it uses: a program finds those that it links, too.
  # GCC of some distributions does so by default, clang does not.
  target_link_options(${target} PRIVATE LINKER:--as-needed)
  set_property(GLOBAL APPEND PROPERTY dtensor_public_headers ${arg_HEADERS})
  dtensor_warnings(${target})
endfunction()

# dtensor_layers(<name> LAYERS <layer>... PRECOMPILED <header>...): the library
# of these layers of sources.cmake. Headers that nearly every source includes
# are precompiled, which saves half of the compile time. Sources also compile
# without, with CMAKE_DISABLE_PRECOMPILE_HEADERS.
function(dtensor_layers name)
  cmake_parse_arguments(arg "" "" "LAYERS;PRECOMPILED" ${ARGN})
  set(headers)
  set(sources)
  foreach(layer ${arg_LAYERS})
    list(APPEND headers ${DTENSOR_${layer}_HEADERS})
    list(APPEND sources ${DTENSOR_${layer}_SOURCES})
  endforeach()
  dtensor_library(${name} HEADERS ${headers} SOURCES ${sources})
  set(target dtensor_${name})
  target_precompile_headers(${target} PRIVATE
    <algorithm> <functional> <map> <memory> <mutex> <optional> <string> <vector>
    <ATen/core/Tensor.h> <ATen/core/dispatch/Dispatcher.h> <ATen/core/stack.h>
    <torch/csrc/autograd/variable.h> <torch/library.h> ${arg_PRECOMPILED})
  target_compile_options(${target} PRIVATE
    ${dtensor_precompiled_flags} ${DTENSOR_LIBRARY_FLAGS})
  # GCC inlines less in large units. The limit is raised so that code in a unity
  # build is as fast as code compiled alone.
  if(CMAKE_UNITY_BUILD)
    target_compile_options(${target} PRIVATE
      "$<$<CXX_COMPILER_ID:GNU>:--param=large-unit-insns=200000>")
  endif()
  target_link_libraries(${target} PRIVATE
    $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>)
  # Instruments the code for libFuzzer, which tracks the code that an input
  # reaches.
  if(DTENSOR_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

find_package(nlohmann_json REQUIRED)
# Tensors, operators and tensor parallelism. DTENSOR_COMM_ONLY leaves out the
# layers above comm, for slow tools that check threads.
set(dtensor_core_layers BASE LAYOUT COMM)
if(NOT DTENSOR_COMM_ONLY)
  list(APPEND dtensor_core_layers REDISTRIBUTE TENSOR RANDOM OPS PARALLEL DEBUG)
endif()
dtensor_layers(core LAYERS ${dtensor_core_layers})
# Torch is PUBLIC because our headers use it.
target_link_libraries(dtensor_core PUBLIC torch)
# The library calls libc10_cuda itself, but programs that link it need not link
# libc10_cuda. An installed library finds it, and LibTorch's own libcudart,
# without help.
if(dtensor_torch_kind MATCHES "^CUDA")
  set(run_path ${TORCH_INSTALL_PREFIX}/lib)
  if(dtensor_cudart)
    cmake_path(GET dtensor_cudart PARENT_PATH cudart_folder)
    list(APPEND run_path ${cudart_folder})
  endif()
  set_target_properties(dtensor_core PROPERTIES INSTALL_RPATH "${run_path}")
  # LibTorch 2.11 for CUDA exports parts of std::filesystem with a remove_all()
  # that crashes. Linking the standard library first makes programs that link us
  # use the correct one.
  if(dtensor_torch_version VERSION_LESS 2.12)
    target_link_options(dtensor_core PUBLIC
      "SHELL:LINKER:--push-state,--no-as-needed -lstdc++ LINKER:--pop-state")
  endif()
endif()

# The full library: training, checkpoints and loading of models in addition.
if(DTENSOR_COMM_ONLY)
  add_library(dtensor_dtensor INTERFACE)
  add_library(dtensor::dtensor ALIAS dtensor_dtensor)
  set_target_properties(dtensor_dtensor PROPERTIES EXPORT_NAME dtensor)
  target_link_libraries(dtensor_dtensor INTERFACE dtensor_core)
else()
  dtensor_layers(dtensor
    LAYERS DATA_PARALLEL DEFERRED WEIGHTS CHECKPOINT PROGRAM
    PRECOMPILED <nlohmann/json.hpp> <torch/nn/module.h>)
  set_target_properties(dtensor_dtensor PROPERTIES
    OUTPUT_NAME dtensor INSTALL_RPATH $ORIGIN)
  target_link_libraries(dtensor_dtensor PUBLIC dtensor_core)
  # Digests of tensors and checksums of checkpoints, header-only.
  find_path(dtensor_xxhash xxhash.h REQUIRED)
  foreach(target dtensor_core dtensor_dtensor)
    target_include_directories(${target} PRIVATE
      $<BUILD_INTERFACE:${dtensor_xxhash}>)
  endforeach()
  if(dtensor_kind STREQUAL STATIC)
    dtensor_link_operators(dtensor_core)
  endif()

  dtensor_library(testing
    HEADERS ${DTENSOR_TESTING_HEADERS} SOURCES ${DTENSOR_TESTING_SOURCES})
  target_link_libraries(dtensor_testing PUBLIC dtensor_core)

  # dtensor_module(<name> <library>): a module of dtensor/contrib above
  # `library`, of which it uses the public headers alone.
  function(dtensor_module name library)
    string(TOUPPER ${name} list)
    dtensor_library(${name}
      HEADERS ${DTENSOR_${list}_HEADERS} SOURCES ${DTENSOR_${list}_SOURCES})
    set(target dtensor_${name})
    target_link_libraries(${target} PUBLIC ${library})
    target_compile_options(${target} PRIVATE ${DTENSOR_LIBRARY_FLAGS}
      $<$<BOOL:${DTENSOR_FUZZ}>:-fsanitize=fuzzer-no-link>)
    set_target_properties(${target} PROPERTIES INSTALL_RPATH $ORIGIN)
  endfunction()
  # Tensor parallelism of PyTorch 2.0.
  dtensor_module(legacy_tp dtensor_core)
  # Models of torch.jit.
  dtensor_module(torchscript dtensor_dtensor)
endif()

# LibTorch contains Gloo, but not its headers: see cmake/gloo/README.md.
set_source_files_properties(dtensor/comm/processes/gloo.cpp PROPERTIES
  INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR}/cmake/gloo
  COMPILE_DEFINITIONS USE_C10D_GLOO)
# LibTorch ships fmt's headers, but not its library.
set_source_files_properties(dtensor/comm/processes/flight_record.cpp PROPERTIES
  COMPILE_DEFINITIONS FMT_HEADER_ONLY)
# Called only on processors that have AVX2.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(dtensor/debug/digest_avx2.cpp PROPERTIES
    COMPILE_OPTIONS -mavx2
    SKIP_UNITY_BUILD_INCLUSION ON
    SKIP_PRECOMPILE_HEADERS ON)
endif()
include(cmake/nccl.cmake)
