// SPDX-License-Identifier: BSD-3-Clause
// Operators that copy, convert or fill. The layout stays, even a partial one. A
// new tensor like another tensor has its layout, and ignores its data.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>

#include <algorithm>

namespace dtensor {
namespace {

using namespace detail;

// Returns the reductions under which a filled tensor may stay partial. The
// reduction of equal numbers must be the same number; for a sum, only one rank
// writes the number.
std::vector<ReduceOp> fill_ops() {
  return {
      ReduceOp::kSum,
      ReduceOp::kAvg,
      ReduceOp::kMin,
      ReduceOp::kMax,
      ReduceOp::kBand,
      ReduceOp::kBor};
}

// Returns true if terms in this dtype sum correctly. Sums of integers wrap
// around consistently. Sums of booleans do not, and averages of integers round.
bool is_summed(const Placement& p, at::ScalarType dtype) {
  return p.is_partial(ReduceOp::kSum) ? dtype != at::kBool
                                      : p.is_partial(ReduceOp::kAvg) &&
          !at::isIntegralType(dtype, /*includeBool=*/true);
}

// Returns the strategies for results without values. Sums stay partial, since
// terms may be written. Results under other reductions become replicated, since
// later writes may not match them.
Strategies same_layout(const OpCall& call, int64_t mesh_dim) {
  auto strategies =
      move_strategies(call, mesh_dim, identity_map(call.inputs[0].dim()));
  const auto& now = call.inputs[0].placement(mesh_dim);
  if (now.is_partial() && !is_summed(now, call.outputs[0].dtype)) {
    strategies.back().outputs[0] = Replicate();
  }
  return strategies;
}

// Returns the strategies for results of numbers, which must not be summed:
// partial becomes replicated. Zeros could stay partial, but optimizers take
// zeros_like(gradient) as a state and write to it by operators that are not
// linear. No communication takes place, because the data are not used.
Strategies same_shards(const OpCall& call, int64_t mesh_dim) {
  auto strategies = same_layout(call, mesh_dim);
  if (call.inputs[0].placement(mesh_dim).is_partial()) {
    strategies.back().outputs[0] = Replicate();
  }
  return strategies;
}

// Returns the strategies of new_zeros(size) and similar operators. The result
// has self's layout if it has self's size. Otherwise, and for gradients of
// written views, it is replicated. self keeps its layout.
Strategies new_rule(const OpCall& call, int64_t mesh_dim) {
  if (call.outputs[0].sizes == call.inputs[0].sizes() &&
      !call.in_view_backward) {
    return same_shards(call, mesh_dim);
  }
  return {{{Replicate()}, {call.inputs[0].placement(mesh_dim)}}};
}

void local_new_strides(const OpCall& call, Decision& decision) {
  const auto given = call.ints_arg("stride");
  DTENSOR_CHECK(
      std::ranges::all_of(given, [](int64_t stride) { return stride >= 0; }),
      "[{}] got strides {}. Pass non-negative strides.",
      call.name(),
      at::IntArrayRef(given));
  if (call.in_view_backward) {
    return; // full strides, gaps included
  }
  const auto& out = *decision.outputs[0];
  const auto strides = dense_strides(out.local_sizes(), out.strides());
  decision.args.emplace_back(call.arg_index("stride"), SizesRef(strides).vec());
}

} // namespace

DTENSOR_RULES(copy) {
  // Module::clone() calls clone(), for example. The result still stands for the
  // parameter.
  for (const auto* name : {"_to_copy", "alias", "clone", "detach"}) {
    rules.dim_rule(name, pointwise_rule({all_ops(), {{0}}}))
        .with_traits({.keeps_boundary = true});
  }
  for (const auto* name :
       {"alias_copy",
        "detach_",
        "detach_copy",
        "lift",
        "lift_fresh",
        "lift_fresh_copy"}) {
    rules.dim_rule(name, pointwise_rule({all_ops(), {{0}}}));
  }
  // self keeps its layout, and the source is redistributed to this layout.
  // torch::nn::init writes its random numbers by copy_.
  rules.dim_rule("copy", pointwise_rule({select_ops(), {{0, 1}}}));
  rules.dim_rule("copy_", pointwise_rule({select_ops(), {{0, 1}}}))
      .with_traits({.accepts_plain_source = true});
  rules.dim_rule("fill.Scalar", pointwise_rule({fill_ops(), {{0}}}))
      .with_local_kernel(boxed(write_number_once));
  rules.dim_rule("fill.Tensor", pointwise_rule({select_ops(), {{0, 1}}}));
  rules.traits(
      "fill_.Tensor", {.accepts_plain_source = true, .writes_expanded = true});
  rules.dim_rule("zero", pointwise_rule({all_ops(), {{0}}}));
  for (const auto* name : {"fill_.Scalar", "zero_"}) {
    rules.traits(name, {.writes_expanded = true});
  }
}

DTENSOR_RULES(creation) {
  rules.dim_rule("empty_like", same_layout);
  rules.dim_rule("zeros_like", same_shards);
  rules.dim_rule("ones_like", same_shards);
  rules.dim_rule("full_like", same_shards);
  for (const auto* name : {"new_empty", "new_zeros", "new_ones", "new_full"}) {
    rules.dim_rule(name, new_rule)
        .depends_on_view_backward()
        .with_traits({.size_arg = "size"});
  }
  rules.dim_rule("new_empty_strided", new_rule)
      .with_localize(local_new_strides)
      .depends_on_view_backward()
      .with_traits({.size_arg = "size"});
}

} // namespace dtensor
