// SPDX-License-Identifier: BSD-3-Clause
// New tensors like another: in its layout, without looking at its data.
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>

namespace dtensor {
namespace {

// Sums of integers wrap, but not those of truth values; averages round.
bool is_summed(const Placement& p, at::ScalarType dtype) {
  return p.is_partial(ReduceOp::kSum) ? dtype != at::kBool
                                      : p.is_partial(ReduceOp::kAvg) &&
          !at::isIntegralType(dtype, /*includeBool=*/true);
}

// No value, or zero: sums stay sums, to which terms may be added. Nothing is
// known of what shall be written over other reductions: they become replicated.
Strategies same_layout(const OpCall& call, int64_t mesh_dim) {
  auto strategies =
      move_strategies(call, mesh_dim, identity_map(call.inputs[0].dim()));
  const auto& now = call.inputs[0].placement(mesh_dim);
  if (now.is_partial() && !is_summed(now, call.outputs[0].dtype)) {
    strategies.back().outputs[0] = Replicate();
  }
  return strategies;
}

// Other numbers would be added up: partial becomes replicated, and nothing is
// communicated, since the data does not matter.
Strategies same_shards(const OpCall& call, int64_t mesh_dim) {
  auto strategies = same_layout(call, mesh_dim);
  if (call.inputs[0].placement(mesh_dim).is_partial()) {
    strategies.back().outputs[0] = Replicate();
  }
  return strategies;
}

// new_zeros(size): self's layout for a tensor of its size, replicated for any
// other, and for gradients of written views; self itself is left as it is.
Strategies new_rule(const OpCall& call, int64_t mesh_dim) {
  if (call.outputs[0].sizes == call.inputs[0].sizes() &&
      !call.in_view_backward) {
    return same_shards(call, mesh_dim);
  }
  return {{{Replicate()}, {call.inputs[0].placement(mesh_dim)}}};
}

void local_new_strides(const OpCall& call, Decision& decision) {
  if (call.in_view_backward) {
    return; // whole, gaps included
  }
  const auto& out = *decision.outputs[0];
  const auto strides = dense_strides(out.local_sizes(), out.strides());
  decision.args.emplace_back(call.arg_index("stride"), SizesRef(strides).vec());
}

} // namespace

DTENSOR_RULES(creation) {
  rules.dim_rule("empty_like", same_layout);
  rules.dim_rule("zeros_like", same_layout);
  rules.dim_rule("ones_like", same_shards);
  rules.dim_rule("full_like", same_shards);
  for (const auto* name : {"new_empty", "new_zeros", "new_ones", "new_full"}) {
    rules.dim_rule(name, new_rule)
        .sees_view_backward()
        .with_traits({.size_arg = "size"});
  }
  rules.dim_rule("new_empty_strided", new_rule)
      .with_localize(local_new_strides)
      .sees_view_backward()
      .with_traits({.size_arg = "size"});
}

} // namespace dtensor
