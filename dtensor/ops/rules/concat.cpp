// SPDX-License-Identifier: BSD-3-Clause
// Putting tensors together and taking parts out. A dimension along which parts
// are counted is whole on every rank; the others may be sharded. All of these
// only move elements, so partial values stay partial if all operands are.
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/pointwise_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <algorithm>
#include <limits>

namespace dtensor {
namespace {

using detail::dense;

constexpr int64_t kEnd = std::numeric_limits<int64_t>::max();

// All operands Partial with the same op. Terms may not be rounded or wrapped to
// the dtype of the result one by one.
void add_common_partial(
    const OpCall& call,
    int64_t mesh_dim,
    Strategies& strategies) {
  const auto& first = call.inputs[0].placement(mesh_dim);
  const bool common = first.is_partial() &&
      std::all_of(call.inputs.begin(), call.inputs.end(), [&](const auto& in) {
                        return in.placement(mesh_dim) == first &&
                            detail::keeps_partial_dtype(
                                   in.spec->dtype(), call.outputs[0].dtype);
                      });
  if (common) {
    strategies.push_back(
        {Placements(call.outputs.size(), first),
         Placements(call.inputs.size(), first)});
  }
}

// cat skips tensors of shape [0], whatever the shape of the others.
bool is_skipped(const OpInput& input, int64_t ndim) {
  return input.dim() != ndim;
}

Strategies cat_rule(const OpCall& call, int64_t mesh_dim) {
  const auto ndim = call.outputs[0].dim();
  const auto along = call.dim_arg("dim", ndim);
  Strategies strategies;
  for (int64_t d = 0; d < ndim; ++d) {
    if (d == along) {
      continue;
    }
    Strategy s{{Shard(d)}, {}};
    for (const auto& input : call.inputs) {
      s.inputs.push_back(is_skipped(input, ndim) ? Replicate() : Shard(d));
    }
    strategies.push_back(std::move(s));
  }
  add_common_partial(call, mesh_dim, strategies);
  return strategies;
}

Strategies stack_rule(const OpCall& call, int64_t mesh_dim) {
  const auto along = call.dim_arg("dim", call.outputs[0].dim());
  Strategies strategies;
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    strategies.push_back(
        {{Shard(d < along ? d : d + 1)},
         Placements(call.inputs.size(), Shard(d))});
  }
  add_common_partial(call, mesh_dim, strategies);
  return strategies;
}

Strategies split_rule(const OpCall& call, int64_t mesh_dim) {
  auto map = identity_map(call.inputs[0].dim());
  map[static_cast<size_t>(call.dim_arg("dim", call.inputs[0].dim()))] = -1;
  return move_strategies(call, mesh_dim, map);
}

// A map of the dimensions of a tensor of `ndim` to those of one without `dim`.
DimMap dropping(int64_t dim, int64_t ndim) {
  DimMap map;
  for (int64_t d = 0; d < ndim; ++d) {
    map.push_back(d < dim ? d : d - 1);
  }
  map[static_cast<size_t>(dim)] = -1;
  return map;
}

Strategies select_rule(const OpCall& call, int64_t mesh_dim) {
  const auto ndim = call.inputs[0].dim();
  return move_strategies(
      call, mesh_dim, dropping(call.dim_arg("dim", ndim), ndim));
}

// What slice arguments leave of a dimension of `size`: all of it?
bool takes_all(const OpCall& call, int64_t size) {
  const auto start = call.arg("start").isNone() ? 0 : call.int_arg("start");
  const auto end = call.arg("end").isNone() ? kEnd : call.int_arg("end");
  return (start == 0 || start <= -size) && end >= size &&
      call.int_arg("step") == 1;
}

DimMap slice_map(const OpCall& call, SizesRef whole) {
  const auto ndim = static_cast<int64_t>(whole.size());
  auto map = identity_map(ndim);
  const auto along = static_cast<size_t>(call.dim_arg("dim", ndim));
  if (!takes_all(call, whole[along])) {
    map[along] = -1;
  }
  return map;
}

Strategies slice_rule(const OpCall& call, int64_t mesh_dim) {
  return move_strategies(
      call, mesh_dim, slice_map(call, call.inputs[0].sizes()));
}

// Taking all of a dimension, local slices take all of theirs.
void local_range(const OpCall& call, SizesRef whole, Decision& decision) {
  const auto ndim = static_cast<int64_t>(whole.size());
  if (takes_all(call, whole[static_cast<size_t>(call.dim_arg("dim", ndim))])) {
    decision.args.emplace_back(call.arg_index("start"), int64_t{0});
    decision.args.emplace_back(call.arg_index("end"), kEnd);
  }
}

void localize_slice(const OpCall& call, Decision& decision) {
  local_range(call, call.inputs[0].sizes(), decision);
}

// The gradient of a part, in a tensor of zeros as large as the whole.
Strategies slice_backward_rule(const OpCall& call, int64_t mesh_dim) {
  return move_strategies(
      call, mesh_dim, slice_map(call, call.outputs[0].sizes));
}

void localize_slice_backward(const OpCall& call, Decision& decision) {
  local_range(call, call.outputs[0].sizes, decision);
}

DimMap inverse(const DimMap& map, int64_t ndim) {
  DimMap back(static_cast<size_t>(ndim), -1);
  for (size_t d = 0; d < map.size(); ++d) {
    if (map[d] >= 0) {
      back[static_cast<size_t>(map[d])] = static_cast<int64_t>(d);
    }
  }
  return back;
}

Strategies select_backward_rule(const OpCall& call, int64_t mesh_dim) {
  const auto ndim = call.outputs[0].dim();
  const auto whole_to_part = dropping(call.dim_arg("dim", ndim), ndim);
  return move_strategies(
      call, mesh_dim, inverse(whole_to_part, call.inputs[0].dim()));
}

Strategies diagonal_backward_rule(const OpCall& call, int64_t mesh_dim) {
  const auto ndim = call.outputs[0].dim();
  const auto a = call.dim_arg("dim1", ndim);
  const auto b = call.dim_arg("dim2", ndim);
  DimMap map(static_cast<size_t>(call.inputs[0].dim()), -1);
  size_t part = 0;
  for (int64_t d = 0; d < ndim; ++d) {
    if (d != a && d != b) {
      map[part++] = d;
    }
  }
  return move_strategies(call, mesh_dim, map);
}

std::vector<OutputMeta> input_sizes_meta(const OpCall& call) {
  return {dense(call.ints_arg("input_sizes"), call.inputs[0].spec->dtype())};
}

Strategies unfold_backward_rule(const OpCall& call, int64_t mesh_dim) {
  const auto ndim = call.outputs[0].dim();
  auto map = identity_map(call.inputs[0].dim());
  map.back() = -1;
  map[static_cast<size_t>(call.dim_arg("dim", ndim))] = -1;
  auto strategies = move_strategies(call, mesh_dim, map);
  // Windows overlap and add up.
  const auto& now = call.inputs[0].placement(mesh_dim);
  if (now.is_partial() && !now.is_partial(ReduceOp::kSum) &&
      !now.is_partial(ReduceOp::kAvg)) {
    strategies.pop_back();
  }
  return strategies;
}

// self with `src` in place of a part; `map` goes from self to src.
Strategies
scatter_part(const OpCall& call, int64_t mesh_dim, const DimMap& map) {
  Strategies strategies;
  for (size_t d = 0; d < map.size(); ++d) {
    if (map[d] >= 0) {
      const auto whole = Shard(static_cast<int64_t>(d));
      strategies.push_back({{whole}, {whole, Shard(map[d])}});
    }
  }
  add_common_partial(call, mesh_dim, strategies);
  return strategies;
}

Strategies slice_scatter_rule(const OpCall& call, int64_t mesh_dim) {
  return scatter_part(call, mesh_dim, slice_map(call, call.inputs[0].sizes()));
}

Strategies select_scatter_rule(const OpCall& call, int64_t mesh_dim) {
  const auto ndim = call.inputs[0].dim();
  return scatter_part(
      call, mesh_dim, dropping(call.dim_arg("dim", ndim), ndim));
}

// Padding with zeros leaves a sum a sum; any other number would be added once
// per rank.
Strategies pad_rule(const OpCall& call, int64_t mesh_dim) {
  const auto pad = call.ints_arg("pad");
  auto map = identity_map(call.inputs[0].dim());
  for (size_t i = 0; i < pad.size(); ++i) {
    if (pad[i] != 0) {
      map[map.size() - 1 - i / 2] = -1;
    }
  }
  auto strategies = move_strategies(call, mesh_dim, map);
  if (call.inputs[0].placement(mesh_dim).is_partial() &&
      !call.arg("value").toScalar().equal(0)) {
    strategies.pop_back();
  }
  return strategies;
}

} // namespace

DTENSOR_RULES(concat) {
  // The gradient of a tensor that it skips is made of its sizes.
  rules.dim_rule("cat", cat_rule)
      .sees_backward()
      .with_traits({.gradient_of_sizes = true});
  rules.dim_rule("stack", stack_rule).sees_backward();
  for (const auto* name :
       {"split.Tensor",
        "split_with_sizes",
        "unsafe_split.Tensor",
        "unsafe_split_with_sizes"}) {
    rules.dim_rule(name, split_rule);
  }
  rules.dim_rule("unbind.int", select_rule);
  rules.dim_rule("select.int", select_rule);
  rules.dim_rule("slice.Tensor", slice_rule).with_localize(localize_slice);
  rules.dim_rule("select_backward", select_backward_rule)
      .with_traits({.size_arg = "input_sizes"});
  rules.dim_rule("slice_backward", slice_backward_rule)
      .with_traits({.size_arg = "input_sizes"})
      .with_localize(localize_slice_backward);
  rules.dim_rule("diagonal_backward", diagonal_backward_rule)
      .with_traits({.size_arg = "input_sizes"});
  rules.dim_rule("unfold_backward", unfold_backward_rule)
      .with_meta(input_sizes_meta)
      .with_traits({.size_arg = "input_sizes"});
  rules.dim_rule("slice_scatter", slice_scatter_rule)
      .with_localize(localize_slice)
      .sees_backward();
  rules.dim_rule("select_scatter", select_scatter_rule).sees_backward();
  rules.dim_rule("constant_pad_nd", pad_rule).scalar_values();
}

} // namespace dtensor
