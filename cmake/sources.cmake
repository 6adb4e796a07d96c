# The library's files, listed and never globbed: one a line, alphabetical
# within a layer, and listed once the file exists. Paths start at the root.
#
# HEADERS are public and get installed; every one of them is included by
# dtensor/dtensor.h. An internal header is named *_impl.h and stands among the
# SOURCES.

set(DTENSOR_BASE_HEADERS
  dtensor/api.h
  dtensor/dtensor.h
  dtensor/error.h
  dtensor/version.h
)

set(DTENSOR_LAYOUT_HEADERS
  dtensor/layout/mesh.h
  dtensor/layout/placement.h
  dtensor/layout/shard_math.h
  dtensor/layout/spec.h
  dtensor/layout/text.h
)
set(DTENSOR_LAYOUT_SOURCES
  dtensor/layout/intern_impl.h
  dtensor/layout/mesh.cpp
  dtensor/layout/mesh_slice.cpp
  dtensor/layout/mesh_state_impl.h
  dtensor/layout/parse.cpp
  dtensor/layout/placement.cpp
  dtensor/layout/shard_math.cpp
  dtensor/layout/spec.cpp
  dtensor/layout/text.cpp
)

set(DTENSOR_COMM_HEADERS
  dtensor/comm/group.h
  dtensor/comm/init_device_mesh.h
  dtensor/comm/observer.h
  dtensor/comm/ranks.h
)
set(DTENSOR_COMM_SOURCES
)

set(DTENSOR_REDISTRIBUTE_HEADERS
  dtensor/redistribute/execute.h
  dtensor/redistribute/plan.h
)
set(DTENSOR_REDISTRIBUTE_SOURCES
)

set(DTENSOR_TENSOR_HEADERS
)
set(DTENSOR_TENSOR_SOURCES
)

set(DTENSOR_OPS_HEADERS
)
set(DTENSOR_OPS_SOURCES
)

set(DTENSOR_PARALLEL_HEADERS
)
set(DTENSOR_PARALLEL_SOURCES
)

set(DTENSOR_DEBUG_HEADERS
)
set(DTENSOR_DEBUG_SOURCES
)

# The target dtensor::testing, a library of its own.
set(DTENSOR_TESTING_HEADERS
)
set(DTENSOR_TESTING_SOURCES
)
