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
  dtensor/comm/rank_generator.h
  dtensor/comm/ranks.h
  dtensor/comm/thread_backend.h
)
set(DTENSOR_COMM_SOURCES
  dtensor/comm/call.cpp
  dtensor/comm/call_impl.h
  dtensor/comm/channel.cpp
  dtensor/comm/channel_impl.h
  dtensor/comm/failure_report.cpp
  dtensor/comm/failure_report_impl.h
  dtensor/comm/group.cpp
  dtensor/comm/init_device_mesh.cpp
  dtensor/comm/observer.cpp
  dtensor/comm/rank_generator.cpp
  dtensor/comm/rank_generator_impl.h
  dtensor/comm/ranks.cpp
  dtensor/comm/reduce.cpp
  dtensor/comm/reduce_impl.h
  dtensor/comm/thread_backend.cpp
  dtensor/comm/thread_group.cpp
  dtensor/comm/thread_group_impl.h
  dtensor/comm/thread_world.cpp
  dtensor/comm/thread_world_impl.h
)

set(DTENSOR_REDISTRIBUTE_HEADERS
  dtensor/redistribute/execute.h
  dtensor/redistribute/plan.h
)
set(DTENSOR_REDISTRIBUTE_SOURCES
  dtensor/redistribute/cost.cpp
  dtensor/redistribute/execute.cpp
  dtensor/redistribute/moves.cpp
  dtensor/redistribute/moves_impl.h
  dtensor/redistribute/plan.cpp
  dtensor/redistribute/plan_impl.h
  dtensor/redistribute/search.cpp
  dtensor/redistribute/search_impl.h
)

set(DTENSOR_TENSOR_HEADERS
  dtensor/tensor/api.h
  dtensor/tensor/factories.h
  dtensor/tensor/is_dtensor.h
)
set(DTENSOR_TENSOR_SOURCES
  dtensor/tensor/autograd.cpp
  dtensor/tensor/autograd_impl.h
  dtensor/tensor/distribute_tensor.cpp
  dtensor/tensor/dtensor.cpp
  dtensor/tensor/factories.cpp
  dtensor/tensor/from_local.cpp
  dtensor/tensor/meta_impl.h
  dtensor/tensor/wrap.cpp
)

set(DTENSOR_OPS_HEADERS
  dtensor/ops/dim_map.h
  dtensor/ops/einsum.h
  dtensor/ops/op_call.h
  dtensor/ops/propagate.h
  dtensor/ops/registry.h
  dtensor/ops/strategy.h
)
set(DTENSOR_OPS_SOURCES
  dtensor/ops/boundary.cpp
  dtensor/ops/boundary_impl.h
  dtensor/ops/decide.cpp
  dtensor/ops/decision_cache.cpp
  dtensor/ops/decision_cache_impl.h
  dtensor/ops/dim_map.cpp
  dtensor/ops/dispatch.cpp
  dtensor/ops/einsum.cpp
  dtensor/ops/in_backward.cpp
  dtensor/ops/in_backward_impl.h
  dtensor/ops/infer_outputs.cpp
  dtensor/ops/install.cpp
  dtensor/ops/op_call.cpp
  dtensor/ops/op_info.cpp
  dtensor/ops/out_variant.cpp
  dtensor/ops/propagate.cpp
  dtensor/ops/registry.cpp
  dtensor/ops/rules/concat.cpp
  dtensor/ops/rules/copy.cpp
  dtensor/ops/rules/creation.cpp
  dtensor/ops/rules/indexing.cpp
  dtensor/ops/rules/matmul.cpp
  dtensor/ops/rules/norm.cpp
  dtensor/ops/rules/pointwise.cpp
  dtensor/ops/rules/pointwise_impl.h
  dtensor/ops/rules/pointwise_names_impl.h
  dtensor/ops/rules/reduction.cpp
  dtensor/ops/rules/reduction_impl.h
  dtensor/ops/rules/scan.cpp
  dtensor/ops/rules/shape.cpp
  dtensor/ops/rules/softmax.cpp
  dtensor/ops/rules/triangle.cpp
  dtensor/ops/rules/value.cpp
  dtensor/ops/rules/view.cpp
  dtensor/ops/slot_impl.h
  dtensor/ops/stack_impl.h
  dtensor/ops/variants_impl.h
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
