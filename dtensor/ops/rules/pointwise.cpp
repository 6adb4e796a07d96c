// SPDX-License-Identifier: BSD-3-Clause
// Pointwise operators: any dimension of the result may be sharded. A few
// classes also compute on partial operands.
#include <dtensor/ops/rules/pointwise_impl.h>

#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_names_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <string>

namespace dtensor {
namespace detail {

Placement operand_shard(SizesRef sizes, SizesRef out_sizes, int64_t dim) {
  const auto missing = static_cast<int64_t>(out_sizes.size()) -
      static_cast<int64_t>(sizes.size());
  const auto own = dim - missing;
  const bool broadcast = own < 0 ||
      sizes[static_cast<size_t>(own)] != out_sizes[static_cast<size_t>(dim)];
  return broadcast ? Replicate() : Shard(own);
}

bool keeps_partial_dtype(at::ScalarType from, at::ScalarType to) {
  const bool floats = at::isFloatingType(from) || at::isComplexType(from);
  return from == to || (floats && c10::promoteTypes(from, to) == to);
}

void add_linear(
    const OpCall& call,
    const std::vector<size_t>& linear,
    const std::vector<ReduceOp>& reductions,
    int64_t mesh_dim,
    Strategies& strategies) {
  for (const size_t i : linear) {
    const auto& now = call.inputs[i].placement(mesh_dim);
    const bool kept = std::ranges::any_of(
        reductions, [&](const ReduceOp op) { return now.is_partial(op); });
    if (kept &&
        keeps_partial_dtype(
            call.inputs[i].spec->dtype(), call.outputs[0].dtype)) {
      strategies.push_back(all_alike(call, Replicate()));
      strategies.back().inputs[i] = now;
      strategies.back().outputs[0] = now;
    }
  }
}

} // namespace detail

namespace {

using namespace detail;

Strategy sharded(const OpCall& call, int64_t dim) {
  const auto& out_sizes = call.outputs[0].sizes;
  Strategy s;
  for (const auto& out : call.outputs) {
    s.outputs.push_back(operand_shard(out.sizes, out_sizes, dim));
  }
  for (const auto& input : call.inputs) {
    s.inputs.push_back(operand_shard(input.sizes(), out_sizes, dim));
  }
  return s;
}

bool has_partial(const OpCall& call, int64_t mesh_dim, ReduceOp op) {
  return std::ranges::any_of(call.inputs, [&](const OpInput& input) {
    return input.placement(mesh_dim).is_partial(op);
  });
}

// Returns false for max and min of complex numbers, which have no order.
bool can_reduce(ReduceOp op, at::ScalarType dtype) {
  return !at::isComplexType(dtype) ||
      (op != ReduceOp::kMax && op != ReduceOp::kMin);
}

// Returns true if the operands may be partial despite the conversion of dtypes.
// The reduction must commute with the conversion only for operands that are
// already partial. A replicated operand that becomes partial keeps its value on
// one rank.
bool dtypes_allow(
    const OpCall& call,
    int64_t mesh_dim,
    const PartialWays& ways,
    const std::vector<size_t>& operands) {
  const auto out = call.outputs[0].dtype;
  if (ways.order != Order::kAny && !at::isFloatingType(out)) {
    return false;
  }
  return std::ranges::all_of(operands, [&](size_t i) {
    const auto& input = call.inputs[i];
    return !input.placement(mesh_dim).is_partial() ||
        keeps_partial_dtype(input.spec->dtype(), out);
  });
}

ReduceOp reversed(ReduceOp op) {
  return op == ReduceOp::kMax ? ReduceOp::kMin : ReduceOp::kMax;
}

Strategy partial(
    const OpCall& call,
    ReduceOp op,
    const PartialWays& ways,
    const std::vector<size_t>& operands) {
  const auto out = ways.order == Order::kReversed ? reversed(op) : op;
  Strategy s{
      Placements(call.outputs.size(), Partial(out)),
      Placements(call.inputs.size(), Replicate())};
  for (const size_t i : operands) {
    s.inputs[i] = Partial(op);
  }
  return s;
}

void add_partial(
    const OpCall& call,
    int64_t mesh_dim,
    const PartialWays& ways,
    Strategies& strategies) {
  for (const auto op : ways.ops) {
    if (!has_partial(call, mesh_dim, op) ||
        !can_reduce(op, call.outputs[0].dtype)) {
      continue;
    }
    for (const auto& operands : ways.operands) {
      if (dtypes_allow(call, mesh_dim, ways, operands)) {
        strategies.push_back(partial(call, op, ways, operands));
      }
    }
  }
}

} // namespace

DimRule detail::pointwise_rule(PartialWays ways, PartialWays more) {
  return [ways = std::move(ways), more = std::move(more)](
             const OpCall& call, int64_t mesh_dim) {
    Strategies strategies;
    for (int64_t d = 0; d < call.outputs[0].dim(); ++d) {
      strategies.push_back(sharded(call, d));
    }
    add_partial(call, mesh_dim, ways, strategies);
    add_partial(call, mesh_dim, more, strategies);
    return strategies;
  };
}

DTENSOR_RULES(pointwise) {
  const auto add_all = [&](c10::ArrayRef<PointwiseName> names,
                           const PartialWays& ways = {},
                           const PartialWays& more = {}) {
    for (const auto& [name, note] : names) {
      auto& rule = rules.dim_rule(name, pointwise_rule(ways, more));
      if (note == kNoMeta) {
        rule.with_meta(pointwise_meta);
      }
      rule.traits.gradient_from_sizes_only = note == kGradientOfSizes;
    }
  };
  add_all(kPointwise);
  // The gradient of self is zeros. Out-of-place comparisons have no gradient.
  for (const std::string name : {"eq_", "ge_", "gt_", "le_", "lt_", "ne_"}) {
    rules.traits(name + ".Scalar", {.gradient_from_sizes_only = true});
    rules.traits(name + ".Tensor", {.gradient_from_sizes_only = true});
  }
  add_all(kLinearInFirst, {sum_ops(), {{0}}});
  const PartialWays shifted = {order_ops(), {{0}}, Order::kShifted};
  add_all({"neg"}, {sum_ops(), {{0}}}, {order_ops(), {{0}}, Order::kReversed});
  add_all(kBlends, {sum_ops(), {{0, 1}}});
  add_all({"add.Tensor", "sub.Tensor"}, {sum_ops(), {{0, 1}}}, shifted);
  // torch::nn::Linear adds its bias with this operator.
  rules.traits("add_.Tensor", {.adds_bias = true});
  add_all({"add.Scalar", "sub.Scalar"}, {{ReduceOp::kAvg}, {{0}}}, shifted);
  add_all(kNonDecreasing, {order_ops(), {{0}}});
  add_all({"mul.Tensor"}, {sum_ops(), {{0}, {1}}});
  add_all({"addcmul"}, {sum_ops(), {{0, 1}, {0, 2}}});
  add_all({"addcdiv"}, {sum_ops(), {{0, 1}}});
  const PartialWays most = {{ReduceOp::kMax}, {{0, 1}}};
  const PartialWays least = {{ReduceOp::kMin}, {{0, 1}}};
  const PartialWays one_most = {{ReduceOp::kMax}, {{0}, {1}}};
  const PartialWays one_least = {{ReduceOp::kMin}, {{0}, {1}}};
  add_all({"maximum", "clamp_min.Tensor"}, most, one_least);
  add_all({"minimum", "clamp_max.Tensor"}, least, one_most);
  add_all({{"where.self", kNoMeta}}, {select_ops(), {{1, 2}}});
  add_all({"masked_fill.Tensor"}, {select_ops(), {{0, 2}}});
  rules.dim_rule("masked_fill.Scalar", pointwise_rule({select_ops(), {{0}}}))
      .with_local_kernel(boxed(write_number_once));
  for (const auto* name : {"masked_fill_.Scalar", "masked_fill_.Tensor"}) {
    rules.traits(name, {.writes_expanded = true});
  }
}

namespace {

// Pointwise operators for which LibTorch has no meta kernel in C++, and
// operators that are only partly pointwise.

// Returns a dense result in the memory order of `input`.
OutputMeta like(const OpInput& input, at::ScalarType dtype) {
  const Sizes sizes(input.sizes());
  return {sizes, dense_strides(sizes, input.spec->strides()), dtype};
}

// Returns `count` results like input number `input`.
MetaRule results_like(size_t input, size_t count) {
  return [=](const OpCall& call) {
    const auto& operand = call.inputs[input];
    return std::vector<OutputMeta>(count, like(operand, operand.spec->dtype()));
  };
}

// Returns the row-major results of log_sigmoid_forward.
std::vector<OutputMeta> log_sigmoid_meta(const OpCall& call) {
  return std::vector<OutputMeta>(2, detail::dense_like(*call.inputs[0].spec));
}

// Returns the row-major result of mvlgamma.
std::vector<OutputMeta> mvlgamma_meta(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  const bool integral = at::isIntegralType(self.dtype(), /*includeBool=*/true);
  return {detail::dense(
      self.sizes(),
      integral ? c10::get_default_dtype_as_scalartype() : self.dtype())};
}

std::vector<OutputMeta> mantissa_and_exponent(const OpCall& call) {
  const auto& self = call.inputs[0];
  return {like(self, self.spec->dtype()), like(self, at::kInt)};
}

// tril and triu. A shard of the rows or columns has its own diagonal, which is
// the global diagonal shifted by the shard's offset.

// Returns the diagonal of this rank's shard. Element (i, j) of the shard is
// element (i + rows, j + cols) of the full tensor, so j - i <= diagonal becomes
// j - i <= diagonal + rows - cols.
int64_t local_diagonal(const Spec& spec, int64_t diagonal) {
  const auto& mesh = spec.mesh();
  const auto& coordinate = mesh.get_coordinate();
  if (!coordinate) {
    return diagonal; // a rank outside the mesh computes nothing
  }
  const auto offset =
      global_offset(spec.sizes(), mesh.shape(), spec.placements(), *coordinate);
  const auto rows = offset[offset.size() - 2];
  const auto cols = offset[offset.size() - 1];
  return diagonal + rows - cols;
}

void localize(const OpCall& call, Decision& decision) {
  decision.args.emplace_back(
      call.arg_index("diagonal"),
      local_diagonal(*decision.outputs[0], call.int_arg("diagonal")));
}

} // namespace

DTENSOR_RULES(pointwise_special) {
  const PartialWays linear = {sum_ops(), {{0}}};
  rules.dim_rule("rsub.Tensor", pointwise_rule({sum_ops(), {{0, 1}}}))
      .with_meta(pointwise_meta);
  rules.dim_rule("rsub.Scalar", pointwise_rule({{ReduceOp::kAvg}, {{0}}}))
      .with_meta(pointwise_meta);
  rules.dim_rule("frexp.Tensor", pointwise_rule())
      .with_meta(mantissa_and_exponent);
  rules.dim_rule("log_sigmoid_forward", pointwise_rule())
      .with_meta(log_sigmoid_meta);
  rules.dim_rule("log_sigmoid_backward", pointwise_rule(linear))
      .with_meta(results_like(0, 1));
  rules.dim_rule("_prelu_kernel", pointwise_rule())
      .with_meta(results_like(0, 1));
  rules.dim_rule("_prelu_kernel_backward", pointwise_rule(linear))
      .with_meta(results_like(0, 2));
  // mvlgamma creates a plain range internally, which only works with local
  // tensors.
  rules.dim_rule("mvlgamma", pointwise_rule())
      .with_meta(mvlgamma_meta)
      .as_region();
  rules.dim_rule("mvlgamma_", pointwise_rule())
      .with_meta(results_like(0, 1))
      .with_traits({.gradient_makes_plain = true});
}

DTENSOR_RULES(triangle) {
  for (const auto* name : {"tril", "triu"}) {
    rules.dim_rule(name, detail::pointwise_rule({detail::sum_ops(), {{0}}}))
        .with_localize(localize)
        .no_strided();
  }
}

} // namespace dtensor
