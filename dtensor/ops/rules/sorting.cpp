// SPDX-License-Identifier: BSD-3-Clause
// Operators that find elements by their order along a dimension: sorting, top
// k, k-th values, medians. Shards of this dimension may stay where they are.
#include <dtensor/layout/shard_math.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/reduction_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>
#include <dtensor/ops/shard_cost_impl.h>

#include <algorithm>
#include <cmath>

namespace dtensor {
namespace {

using namespace detail;

bool has_order(at::ScalarType dtype) {
  return dtype != at::kBool && !at::isComplexType(dtype);
}

// Returns the strategies of topk. Ranks exchange candidates if that moves fewer
// bytes than the elements of the shards. A candidate has an index of 8 bytes at
// most.
Strategies topk_rule(const OpCall& call, int64_t mesh_dim) {
  auto strategies = along_dim_rule()(call, mesh_dim);
  const auto& input = call.inputs[0];
  const auto dtype = input.spec->dtype();
  if (input.dim() == 0 || input.spec->numel() == 0 || !has_order(dtype)) {
    return strategies;
  }
  const auto dim = call.dim_arg("dim", input.dim());
  const auto element = static_cast<int64_t>(c10::elementSize(dtype));
  const auto k = call.int_arg("k");
  if (k > 0 &&
      k * (element + 8) <= largest_shard_of(input, mesh_dim, dim) * element) {
    strategies.push_back({{Replicate(), Replicate()}, {Shard(dim)}});
  }
  return strategies;
}

// Returns true for the dtypes that the kernel of sort can order.
bool has_sort_keys(at::ScalarType dtype) {
  const bool is_wide_unsigned =
      dtype == at::kUInt16 || dtype == at::kUInt32 || dtype == at::kUInt64;
  return dtype == at::kDouble || dtype == at::kFloat || dtype == at::kHalf ||
      dtype == at::kBFloat16 ||
      (at::isIntegralType(dtype, /*includeBool=*/true) && !is_wide_unsigned);
}

// Returns true if the shards of `dim` may be sorted where they are: chunks of
// this mesh dimension alone. If another dimension can be sharded, moving the
// shards to this dimension and back costs less.
bool sorts_shards(const OpInput& input, int64_t mesh_dim, int64_t dim) {
  const auto& mesh = input.spec->mesh();
  bool fits = input.spec->numel() > 0 && mesh.size(mesh_dim) > 1 &&
      input.placement(mesh_dim).is_chunk() &&
      input.placement(mesh_dim).is_sharded(dim);
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    fits &= m == mesh_dim || !input.placement(m).is_sharded(dim);
  }
  for (int64_t d = 0; d < input.dim(); ++d) {
    fits &=
        d == dim || input.sizes()[static_cast<size_t>(d)] < mesh.size(mesh_dim);
  }
  return fits && has_sort_keys(input.spec->dtype());
}

// Returns the number of bytes of samples, and of elements near them, that ranks
// exchange to find positions of a sorted dimension. There are about sqrt(shard
// * ranks) samples and as many elements, of 16 bytes each.
double sample_bytes(double shard, double ranks) {
  return 48 * ranks * std::sqrt(shard * ranks);
}

// Returns true if sorting shards moves fewer bytes than gathering them. Ranks
// exchange each element once, a bit per element and rank, and samples.
bool is_worth_sorting(const OpInput& input, int64_t mesh_dim, int64_t dim) {
  const auto ranks = static_cast<double>(input.spec->mesh().size(mesh_dim));
  const auto shard =
      static_cast<double>(largest_shard_of(input, mesh_dim, dim));
  const auto element =
      static_cast<double>(c10::elementSize(input.spec->dtype()));
  constexpr double kBit = 1.0 / 8; // in bytes
  return sample_bytes(shard, ranks) +
      shard * (element / ranks + kBit) * (ranks - 1) <
      shard * element * (ranks - 1);
}

// Returns the strategies of sort. Shards are sorted where they are if this
// moves fewer bytes.
Strategies sort_rule(const OpCall& call, int64_t mesh_dim) {
  auto strategies = along_dim_rule()(call, mesh_dim);
  const auto& input = call.inputs[0];
  if (input.dim() > 0) {
    const auto dim = call.dim_arg("dim", input.dim());
    if (sorts_shards(input, mesh_dim, dim) &&
        is_worth_sorting(input, mesh_dim, dim)) {
      strategies.push_back({{Shard(dim), Shard(dim)}, {Shard(dim)}});
    }
  }
  return strategies;
}

// Returns the strategies of kthvalue and medians. Ranks find the element among
// their sorted shards if that moves fewer bytes than gathering them.
Strategies selection_rule(const OpCall& call, int64_t mesh_dim) {
  auto strategies = reduction_rule()(call, mesh_dim);
  const auto& input = call.inputs[0];
  if (input.dim() == 0) {
    return strategies;
  }
  const auto dim = call.dim_arg("dim", input.dim());
  const auto size = input.sizes()[static_cast<size_t>(dim)];
  const auto k = call.has_arg("k") ? call.int_arg("k") : 1;
  const auto ranks = static_cast<double>(call.mesh.size(mesh_dim));
  const auto shard =
      static_cast<double>(largest_shard_of(input, mesh_dim, dim));
  const auto element =
      static_cast<double>(c10::elementSize(input.spec->dtype()));
  if (k >= 1 && k <= size && sorts_shards(input, mesh_dim, dim) &&
      input.spec->dtype() != at::kBool &&
      sample_bytes(shard, ranks) < shard * element * (ranks - 1)) {
    strategies.push_back({{Replicate(), Replicate()}, {Shard(dim)}});
  }
  return strategies;
}

// Returns the strategies of the median of all elements. If only one mesh
// dimension shards the operand, its ranks may find the median among sorted
// shards.
Strategies median_rule(const OpCall& call, int64_t mesh_dim) {
  const auto& input = call.inputs[0];
  const auto& placement = input.placement(mesh_dim);
  const auto dtype = input.spec->dtype();
  bool fits = input.spec->numel() > 0 && placement.is_chunk() &&
      has_sort_keys(dtype) && dtype != at::kBool;
  for (int64_t m = 0; m < call.mesh.ndim(); ++m) {
    fits &= m == mesh_dim || !input.placement(m).is_sharded();
  }
  if (!fits) {
    return {};
  }
  const auto dim = placement.dim();
  const auto rows = input.sizes()[static_cast<size_t>(dim)];
  const int64_t elements_per_row = input.spec->numel() / rows;
  const auto shard = static_cast<double>(
      largest_shard_of(input, mesh_dim, dim) * elements_per_row);
  const auto ranks = static_cast<double>(call.mesh.size(mesh_dim));
  const auto element = static_cast<double>(c10::elementSize(dtype));
  return sample_bytes(shard, ranks) < shard * element * (ranks - 1)
      ? Strategies{{{Replicate()}, {placement}}}
      : Strategies{};
}

void note_sharded(const OpCall& call, Decision& decision) {
  const auto& spec = decision.layout_of(call, 0);
  decision.is_plain_call = std::ranges::none_of(
      spec.placements(), [](const Placement& p) { return p.is_sharded(); });
  if (!decision.is_plain_call) {
    keep_layout(call, decision, 0);
  }
}

std::vector<at::ScalarType> dtype_of_operand(const OpCall& call) {
  return {call.inputs[0].spec->dtype()};
}

} // namespace

DTENSOR_RULES(sorting) {
  // In the backward pass, operators that pick elements scatter into plain
  // zeros, so they run with the autograd of the local operator.
  for (const auto* name : {"sort", "sort.stable"}) {
    rules.dim_rule(name, sort_rule)
        .with_localize(note_sharded_dim)
        .with_local_kernel(boxed(sort_local))
        .as_region();
  }
  rules.dim_rule("topk", topk_rule)
      .with_localize(note_sharded_dim)
      .with_local_kernel(boxed(topk_local))
      .as_region();
  for (const auto* name : {"median.dim", "nanmedian.dim", "kthvalue"}) {
    rules.dim_rule(name, selection_rule)
        .with_meta(reduction_meta(values_and_indices))
        .with_localize(note_sharded_dim)
        .with_local_kernel(boxed(selection_local))
        .as_region();
  }
  for (const auto* name : {"median", "nanmedian"}) {
    rules.dim_rule(name, median_rule)
        .with_meta(reduction_meta(dtype_of_operand))
        .with_localize(note_sharded)
        .with_local_kernel(boxed(median_local));
  }
}

} // namespace dtensor
