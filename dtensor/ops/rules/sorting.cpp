// SPDX-License-Identifier: BSD-3-Clause
// Operators that find elements by their order: sorting, top k, k-th values,
// medians, extremes with their indices, modes, quantiles. Except for the last
// two, shards of the dimensions that are searched may stay where they are.
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/text.h>
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
      is_sharded_alone(input, mesh_dim, dim);
  for (int64_t d = 0; d < input.dim(); ++d) {
    fits &=
        d == dim || input.sizes()[static_cast<size_t>(d)] < mesh.size(mesh_dim);
  }
  return fits && has_sort_keys(input.spec->dtype());
}

// Shards of a dimension, in numbers for cost models.
struct Shards {
  Shards(const OpInput& input, int64_t mesh_dim, int64_t dim)
      : ranks(static_cast<double>(input.spec->mesh().size(mesh_dim))),
        size(static_cast<double>(largest_shard_of(input, mesh_dim, dim))),
        element(static_cast<double>(c10::elementSize(input.spec->dtype()))) {}

  // Returns the number of bytes that a rank receives to gather the shards.
  double gathered_bytes() const {
    return size * element * (ranks - 1);
  }
  // Returns the number of bytes of samples, and of elements near them, that
  // ranks exchange to find positions of a sorted dimension. There are about
  // sqrt(size * ranks) samples and as many elements, of 16 bytes each.
  double sample_bytes() const {
    return 48 * ranks * std::sqrt(size * ranks);
  }

  double ranks;
  double size;    // in elements
  double element; // bytes
};

// Returns true if sorting shards moves fewer bytes than gathering them. Ranks
// exchange each element once, a bit per element and rank, and samples.
bool is_worth_sorting(const Shards& shards) {
  constexpr double kBit = 1.0 / 8; // in bytes
  return shards.sample_bytes() +
      shards.size * (shards.element / shards.ranks + kBit) *
          (shards.ranks - 1) <
      shards.gathered_bytes();
}

// Returns true if shards are sorted where they are, because this moves fewer
// bytes.
bool sorts_on_shards(const OpCall& call, int64_t mesh_dim) {
  const auto& input = call.inputs[0];
  const auto dim = call.dim_arg("dim", input.dim());
  return sorts_shards(input, mesh_dim, dim) &&
      is_worth_sorting(Shards(input, mesh_dim, dim));
}

// Returns true if ranks find the element of kthvalue or median among their
// sorted shards, because that moves fewer bytes than gathering them.
bool is_worth_selecting(const OpCall& call, int64_t mesh_dim) {
  const auto& input = call.inputs[0];
  if (input.dim() == 0) {
    return false;
  }
  const auto dim = call.dim_arg("dim", input.dim());
  const auto size = input.sizes()[static_cast<size_t>(dim)];
  const auto k = call.has_arg("k") ? call.int_arg("k") : 1;
  const Shards shards(input, mesh_dim, dim);
  return k >= 1 && k <= size && sorts_shards(input, mesh_dim, dim) &&
      input.spec->dtype() != at::kBool &&
      shards.sample_bytes() < shards.gathered_bytes();
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
  Shards shards(input, mesh_dim, dim);
  const int64_t elements_per_row = input.spec->numel() / rows;
  shards.size *= static_cast<double>(elements_per_row);
  return shards.sample_bytes() < shards.gathered_bytes()
      ? Strategies{{{Replicate()}, {placement}}}
      : Strategies{};
}

// --- extremes and quantiles --------------------------------------------------

// Returns true if every reduced dimension has elements, whose extremes ranks
// compare.
bool has_extremes(const OpCall& call, int64_t) {
  const auto sizes = call.inputs[0].sizes();
  return std::ranges::none_of(reduced_of(call).dims, [&](int64_t dim) {
    return dim < call.inputs[0].dim() && sizes[static_cast<size_t>(dim)] == 0;
  });
}

// Returns true if ranks compare extremes with their indices, of 16 bytes each,
// because that is faster than moving the shards.
bool compares_extremes(const OpCall& call, int64_t mesh_dim) {
  return has_extremes(call, mesh_dim) &&
      is_faster_on_shards(
             call,
             mesh_dim,
             reduced_of(call).dims,
             {CollectiveKind::kAllGather, 1, 16});
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

} // namespace

DTENSOR_RULES(sorting) {
  // In the backward pass, operators that pick elements scatter into plain
  // zeros, so they run with the autograd of the local operator.
  for (const auto* name : {"sort", "sort.stable"}) {
    rules.dim_rule(name, along_dim_rule({}, sorts_on_shards))
        .with_localize(note_sharded_dim)
        .with_local_kernel(boxed(sort_local))
        .as_region();
  }
  rules.dim_rule("topk", topk_rule)
      .with_localize(note_sharded_dim)
      .with_local_kernel(boxed(topk_local))
      .as_region();
  for (const auto* name : {"median.dim", "nanmedian.dim", "kthvalue"}) {
    rules.dim_rule(name, combining_rule(is_worth_selecting))
        .with_meta(reduction_meta(values_and_indices))
        .with_localize(note_sharded_dim)
        .with_local_kernel(boxed(selection_local))
        .as_region();
  }
  for (const auto* name : {"median", "nanmedian"}) {
    rules.dim_rule(name, median_rule)
        .with_meta(reduction_meta(operand_dtype))
        .with_localize(note_shared_dims)
        .with_local_kernel(boxed(median_local));
  }
}

// Gradients of picked elements are scattered into plain tensors of zeros, so
// most of these operators run with the autograd of the local operator.
DTENSOR_RULES(picking) {
  const auto add = [&](const char* name,
                       const DimRule& rule,
                       LocalKernelFunction& kernel) -> OpRule& {
    return rules.dim_rule(name, rule)
        .with_localize(note_shared_dims)
        .with_local_kernel(boxed(kernel));
  };
  const auto place = combining_rule(has_extremes);
  add("argmax", place, argmax_local);
  add("argmin", place, argmin_local);
  const auto extreme = combining_rule(compares_extremes);
  add("max.dim", extreme, greatest_with_index_local).as_region();
  add("min.dim", extreme, least_with_index_local).as_region();
  rules.dim_rule("mode", reduction_rule())
      .with_meta(reduction_meta(values_and_indices))
      .as_region();
  // LibTorch composes quantiles of operators that make plain tensors, and since
  // 2.14 of operators that read memory.
  for (const auto* name :
       {"quantile", "quantile.scalar", "nanquantile", "nanquantile.scalar"}) {
    rules.dim_rule(name, quantile_rule)
        .with_meta(quantile_meta)
        .with_local_kernel(boxed(quantile_local))
        .as_region();
  }
}

} // namespace dtensor
