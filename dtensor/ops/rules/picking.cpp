// SPDX-License-Identifier: BSD-3-Clause
// Reductions that pick elements: extremes with their indices, modes, quantiles.
// Ranks compare the extremes of their shards. The other operators need an
// unsharded reduced dimension.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/reduction_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>
#include <dtensor/ops/shard_cost_impl.h>

#include <algorithm>
#include <utility>

namespace dtensor {
namespace {

using namespace detail;

// Returns true if every reduced dimension has elements.
bool has_extremes(const OpCall& call) {
  const auto sizes = call.inputs[0].sizes();
  return std::ranges::none_of(reduced_of(call).dims, [&](int64_t dim) {
    return dim < call.inputs[0].dim() && sizes[static_cast<size_t>(dim)] == 0;
  });
}

// Returns the strategies of argmax and argmin. If a reduced dimension is
// sharded, ranks compare their local results.
Strategies place_rule(const OpCall& call, int64_t mesh_dim) {
  auto strategies = reduction_rule()(call, mesh_dim);
  if (has_extremes(call)) {
    for (const auto dim : reduced_of(call).dims) {
      strategies.push_back({{Replicate()}, {Shard(dim)}});
    }
  }
  return strategies;
}

// Returns the strategies of extremes with indices. Ranks compare their
// extremes, of 16 bytes each, if that is faster than moving the shards.
Strategies extreme_rule(const OpCall& call, int64_t mesh_dim) {
  auto strategies = reduction_rule()(call, mesh_dim);
  const auto dims = reduced_of(call).dims;
  if (has_extremes(call) &&
      is_faster_on_shards(
          call, mesh_dim, dims, {CollectiveKind::kAllGather, 1, 16})) {
    for (const auto dim : dims) {
      strategies.push_back({{Replicate(), Replicate()}, {Shard(dim)}});
    }
  }
  return strategies;
}

// Returns the strategies of quantile and nanquantile. A tensor `q` of several
// quantiles is replicated, and adds a first dimension to the result.
Strategies quantile_rule(const OpCall& call, int64_t mesh_dim) {
  auto strategies = reduction_rule()(call, mesh_dim);
  if (call.inputs.size() > 1) {
    for (auto& strategy : strategies) {
      const auto dim = strategy.outputs[0].dim();
      strategy.outputs[0] = Shard(call.inputs[1].dim() > 0 ? dim + 1 : dim);
      strategy.inputs.push_back(Replicate());
    }
  }
  return strategies;
}

std::vector<OutputMeta> quantile_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  DTENSOR_CHECK(
      self.numel() > 0,
      "[{}] {} is empty, so it has no quantiles. Pass a non-empty tensor.",
      call.name(),
      self);
  auto result =
      dense(reduced_of(call).result_sizes(self.sizes()), self.dtype());
  if (call.inputs.size() > 1 && call.inputs[1].dim() > 0) {
    // In memory, the quantiles of an element are adjacent.
    const auto count = call.inputs[1].sizes()[0];
    for (auto& stride : result.strides) {
      stride *= std::max<int64_t>(count, 1);
    }
    result.sizes.insert(result.sizes.begin(), count);
    result.strides.insert(result.strides.begin(), 1);
  }
  return {result};
}

// Adds quantiles. LibTorch composes quantiles of operators that make plain
// tensors, and since 2.14 of operators that read memory.
void add_quantiles(RuleRegistry& rules) {
  for (const auto* name :
       {"quantile", "quantile.scalar", "nanquantile", "nanquantile.scalar"}) {
    rules.dim_rule(name, quantile_rule)
        .with_meta(quantile_meta)
        .with_local_kernel(boxed(quantile_local))
        .as_region();
  }
}

} // namespace

// Gradients of picked elements are scattered into plain tensors of zeros, so
// most of these operators run with the autograd of the local operator.
DTENSOR_RULES(picking) {
  const auto add_place = [&](const char* name, LocalKernelFunction& kernel) {
    rules.dim_rule(name, place_rule)
        .with_localize(note_shared_dims)
        .with_local_kernel(boxed(kernel));
  };
  add_place("argmax", argmax_local);
  add_place("argmin", argmin_local);
  const auto add_extreme = [&](const char* name, LocalKernelFunction& kernel) {
    rules.dim_rule(name, extreme_rule)
        .with_localize(note_shared_dims)
        .with_local_kernel(boxed(kernel))
        .as_region();
  };
  add_extreme("max.dim", greatest_with_index_local);
  add_extreme("min.dim", least_with_index_local);
  rules.dim_rule("mode", reduction_rule())
      .with_meta(reduction_meta(values_and_indices))
      .as_region();
  add_quantiles(rules);
}

} // namespace dtensor
