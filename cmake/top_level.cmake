# Settings of a top-level build of dtensor. A parent project has its own.

# The LibTorch found by tools/setup.sh, after the caller's paths.
set(torch_prefix_file ${PROJECT_SOURCE_DIR}/build/torch_prefix)
if(EXISTS ${torch_prefix_file})
  file(STRINGS ${torch_prefix_file} torch_prefix)
  list(APPEND CMAKE_PREFIX_PATH ${torch_prefix})
endif()

# ccache requires this sloppiness for precompiled headers. base_dir and hash_dir
# let clones share their cache entries.
find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
    CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} ${CCACHE})
endif()

set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
