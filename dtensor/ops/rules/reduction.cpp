// SPDX-License-Identifier: BSD-3-Clause
// Reductions. Over a sharded dimension every rank reduces its shard, and the
// result is Partial. Variances and logsumexp gather statistics of the shards.
#include <dtensor/ops/rules/reduction_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>
#include <dtensor/ops/shard_cost_impl.h>

#include <c10/core/DefaultDtype.h>

#include <algorithm>

namespace dtensor {
namespace detail {

bool Reduced::contains(int64_t dim) const {
  return std::binary_search(dims.begin(), dims.end(), dim);
}

int64_t Reduced::result_dim(int64_t dim) const {
  const auto before = std::ranges::lower_bound(dims, dim) - dims.begin();
  return keepdim ? dim : dim - before;
}

Sizes Reduced::result_sizes(SizesRef sizes) const {
  Sizes result;
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
    if (!contains(d)) {
      result.push_back(sizes[static_cast<size_t>(d)]);
    } else if (keepdim) {
      result.push_back(1);
    }
  }
  return result;
}

Reduced reduced_of(const OpCall& call) {
  Reduced reduced;
  // Only any.dims and all.dims interpret an empty list as "no dimension".
  const bool none = call.schema.overload_name() == "dims" &&
      !call.arg("dim").isNone() && call.ints_arg("dim").empty();
  if (!none) {
    reduced.dims = call.dims_arg("dim", call.inputs[0].dim());
  }
  reduced.keepdim = call.has_arg("keepdim") && call.bool_arg("keepdim");
  return reduced;
}

void note_shared_dims(const OpCall& call, Decision& decision) {
  const auto& spec = decision.layout_of(call, 0);
  const bool is_plain = std::ranges::none_of(
      reduced_of(call).dims,
      [&](int64_t dim) { return shares_dim(spec, dim); });
  set_plain_call(call, decision, is_plain);
}

DimRule reduction_rule(
    std::optional<ReduceOp> over_shards,
    std::vector<ReduceOp> keeps) {
  return [over_shards, keeps = std::move(keeps)](
             const OpCall& call, int64_t mesh_dim) {
    const auto reduced = reduced_of(call);
    const auto& input = call.inputs[0];
    Strategies strategies;
    const auto add = [&](const Placement& in, const Placement& out) {
      strategies.push_back({{}, {in}});
      strategies.back().outputs.resize(call.outputs.size(), out);
    };
    for (int64_t d = 0; d < input.dim(); ++d) {
      if (!reduced.contains(d)) {
        add(Shard(d), Shard(reduced.result_dim(d)));
      } else if (over_shards) {
        add(Shard(d), Partial(*over_shards));
      }
    }
    for (const auto op : keeps) {
      if (input.placement(mesh_dim).is_partial(op) &&
          keeps_partial_dtype(input.spec->dtype(), call.outputs[0].dtype)) {
        add(Partial(op), Partial(op));
      }
    }
    return strategies;
  };
}

DimRule combining_rule(CombineTest combines) {
  return
      [combines = std::move(combines)](const OpCall& call, int64_t mesh_dim) {
        auto strategies = reduction_rule()(call, mesh_dim);
        if (combines(call, mesh_dim)) {
          for (const auto dim : reduced_of(call).dims) {
            strategies.push_back(
                {Placements(call.outputs.size(), Replicate()), {Shard(dim)}});
          }
        }
        return strategies;
      };
}

DimRule along_dim_rule(std::vector<size_t> linear, CombineTest combines) {
  return [linear = std::move(linear), combines = std::move(combines)](
             const OpCall& call, int64_t mesh_dim) {
    const auto ndim = call.inputs[0].dim();
    const auto reduced_dim = call.dim_arg("dim", ndim);
    Strategies strategies;
    for (int64_t d = 0; d < ndim; ++d) {
      if (d != reduced_dim) {
        strategies.push_back(all_alike(call, Shard(d)));
      }
    }
    add_linear(call, linear, sum_ops(), mesh_dim, strategies);
    if (ndim > 0 && combines && combines(call, mesh_dim)) {
      strategies.push_back(all_alike(call, Shard(reduced_dim)));
    }
    return strategies;
  };
}

std::vector<at::ScalarType> operand_dtype(const OpCall& call) {
  return {call.inputs[0].spec->dtype()};
}

std::vector<at::ScalarType> values_and_indices(const OpCall& call) {
  return {call.inputs[0].spec->dtype(), at::kLong};
}

MetaRule reduction_meta(DtypeRule dtypes) {
  return [dtypes = std::move(dtypes)](const OpCall& call) {
    const auto sizes = reduced_of(call).result_sizes(call.inputs[0].sizes());
    std::vector<OutputMeta> outputs;
    for (const auto dtype : dtypes(call)) {
      outputs.push_back(dense(sizes, dtype));
    }
    return outputs;
  };
}

} // namespace detail

namespace {

using namespace detail;

at::ScalarType dtype_of(const OpCall& call) {
  return call.inputs[0].spec->dtype();
}

// Returns the dtype of sums and products: int64 for integers unless "dtype" is
// given.
std::vector<at::ScalarType> accumulated(const OpCall& call) {
  const auto& dtype = call.arg("dtype");
  if (!dtype.isNone()) {
    return {dtype.toScalarType()};
  }
  const bool integral =
      at::isIntegralType(dtype_of(call), /*includeBool=*/true);
  return {integral ? at::kLong : dtype_of(call)};
}

std::vector<at::ScalarType> floating(const OpCall& call) {
  const bool integral =
      at::isIntegralType(dtype_of(call), /*includeBool=*/true);
  return {integral ? c10::get_default_dtype_as_scalartype() : dtype_of(call)};
}

std::vector<at::ScalarType> same_of_some(const OpCall& call) {
  DTENSOR_CHECK(
      call.inputs[0].spec->numel() > 0,
      "[{}] {} is empty, so it has no maximum or minimum. Reduce a non-empty "
      "dimension.",
      call.name(),
      *call.inputs[0].spec);
  return operand_dtype(call);
}

std::vector<at::ScalarType> real_value(const OpCall& call) {
  return {c10::toRealValueType(dtype_of(call))};
}

std::vector<at::ScalarType> real_and_mean(const OpCall& call) {
  return {c10::toRealValueType(dtype_of(call)), dtype_of(call)};
}

Strategies aminmax_rule(const OpCall& call, int64_t mesh_dim) {
  auto strategies = reduction_rule()(call, mesh_dim);
  for (const auto dim : reduced_of(call).dims) {
    strategies.push_back(
        {{Partial(ReduceOp::kMin), Partial(ReduceOp::kMax)}, {Shard(dim)}});
  }
  return strategies;
}

// Returns true if shards are larger than their moments, three numbers per
// result, which ranks then gather.
bool gathers_moments(const OpCall& call, int64_t mesh_dim) {
  const auto& input = *call.inputs[0].spec;
  const auto shard = input.numel() / call.mesh.size(mesh_dim);
  return at::isFloatingType(input.dtype()) &&
      shard > 3 * numel(call.outputs[0].sizes);
}

// Returns true if ranks gather the logsumexp of each shard, because this is
// faster than moving the shards. Complex numbers are excluded, because the
// logarithm of a complex sum has several values.
bool gathers_logsumexp(const OpCall& call, int64_t mesh_dim) {
  const auto bytes = static_cast<double>(
      std::max<size_t>(c10::elementSize(call.outputs[0].dtype), 4));
  return !c10::isComplexType(dtype_of(call)) &&
      is_faster_on_shards(
          call,
          mesh_dim,
          reduced_of(call).dims,
          {CollectiveKind::kAllGather, 1, bytes});
}

} // namespace

DTENSOR_RULES(reduction) {
  const auto add_all = [&](std::initializer_list<const char*> names,
                           const DimRule& rule,
                           const MetaRule& meta = nullptr) {
    for (const auto* name : names) {
      rules.dim_rule(name, rule).with_meta(meta);
    }
  };
  const auto sum = reduction_rule(ReduceOp::kSum, sum_ops());
  add_all({"sum", "sum.dim_IntList"}, sum);
  const auto count = reduction_rule(ReduceOp::kSum);
  add_all({"nansum"}, count, reduction_meta(accumulated));
  add_all(
      {"count_nonzero", "count_nonzero.dim_IntList"},
      count,
      reduction_meta([](const OpCall&) {
        return std::vector<at::ScalarType>{at::kLong};
      }));
  // If an element is zero, the gradient formula of a product combines products
  // of the other elements with plain tensors.
  const OpTraits traits{.gradient_makes_plain = true};
  const auto product = reduction_rule(ReduceOp::kProduct);
  rules.dim_rule("prod.dim_int", product).with_traits(traits);
  rules.dim_rule("prod", product)
      .with_meta(reduction_meta(accumulated))
      .with_traits(traits);
  // On booleans `all` is min, and `any` is max.
  const auto least_of = reduction_rule(ReduceOp::kMin, {ReduceOp::kMin});
  const auto greatest_of = reduction_rule(ReduceOp::kMax, {ReduceOp::kMax});
  add_all({"all", "all.dim", "all.dims", "_is_all_true"}, least_of);
  add_all({"any", "any.dim", "any.dims", "_is_any_true"}, greatest_of);
  rules.dim_rule("amax", greatest_of).with_local_kernel(boxed(greatest_local));
  rules.dim_rule("amin", least_of).with_local_kernel(boxed(least_local));
  rules.dim_rule("max", greatest_of)
      .with_meta(reduction_meta(same_of_some))
      .with_local_kernel(boxed(greatest_local));
  rules.dim_rule("min", least_of)
      .with_meta(reduction_meta(same_of_some))
      .with_local_kernel(boxed(least_local));
  // The others cannot be reduced shard by shard: a variance of variances, for
  // example, has no meaning.
  rules.dim_rule("aminmax", aminmax_rule)
      .with_local_kernel(boxed(aminmax_local));
  rules.dim_rule("logsumexp", combining_rule(gathers_logsumexp))
      .with_meta(reduction_meta(floating))
      .with_localize(note_shared_dims)
      .with_local_kernel(boxed(logsumexp_local));
  const auto add_variance = [&](const char* name, const DtypeRule& dtypes) {
    rules.dim_rule(name, combining_rule(gathers_moments))
        .with_meta(reduction_meta(dtypes))
        .with_localize(note_shared_dims)
        .with_local_kernel(boxed(variance_local));
  };
  add_variance("var.correction", real_value);
  add_variance("std.correction", real_value);
  add_variance("var_mean.correction", real_and_mean);
  add_variance("std_mean.correction", real_and_mean);
}

} // namespace dtensor
