// SPDX-License-Identifier: BSD-3-Clause
// Concatenation and splitting of tensors. The dimension along which tensors are
// joined or split is unsharded, or consists of blocks (rules/shapes_impl.h)
// that the operators never divide. The other dimensions may be sharded. These
// operators only move elements, so partial values stay partial if all operands
// are partial.
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <algorithm>

namespace dtensor {
namespace {

using namespace detail;

// Returns true for a tensor of shape [0], which cat skips for any shape of the
// other tensors.
bool is_skipped(const OpInput& input, int64_t ndim) {
  return input.dim() != ndim;
}

// Returns the blocks of the first operand that is sharded along `dim`.
std::optional<DimBlocks>
first_blocks(const OpCall& call, int64_t mesh_dim, int64_t dim) {
  for (const auto& input : call.inputs) {
    if (input.dim() > dim) {
      if (const auto blocks = blocks_of_dim(input, mesh_dim, dim)) {
        return blocks;
      }
    }
  }
  return std::nullopt;
}

// Adds the strategy for gradients of the results of a split, each made of
// complete blocks. In the forward pass, the split tensor had this layout. The
// strategy applies only in the backward pass, because a program that
// concatenates sharded tensors gets Python's layout.
void add_cat_of_blocks(
    const OpCall& call,
    int64_t mesh_dim,
    int64_t along,
    Strategies& strategies) {
  const auto like = first_blocks(call, mesh_dim, along);
  if (!call.in_backward || !like) {
    return;
  }
  Strategy s;
  int64_t count = 0;
  for (const auto& input : call.inputs) {
    const auto dim_size = is_skipped(input, call.outputs[0].dim())
        ? 0
        : input.sizes()[static_cast<size_t>(along)];
    if (dim_size == 0 || dim_size % like->size != 0) {
      return;
    }
    s.inputs.push_back(in_blocks(along, dim_size / like->size, *like));
    count += dim_size / like->size;
  }
  s.outputs.push_back(in_blocks(along, count, *like));
  strategies.push_back(std::move(s));
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
  add_cat_of_blocks(call, mesh_dim, along, strategies);
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

// Adds the strategy for a split whose results consist of complete blocks.
void add_split_of_blocks(
    const OpCall& call,
    int64_t mesh_dim,
    int64_t along,
    Strategies& strategies) {
  const auto& input = call.inputs[0];
  const auto blocks = blocks_of_dim(input, mesh_dim, along);
  if (!blocks) {
    return;
  }
  Strategy s{{}, {input.placement(mesh_dim)}};
  for (const auto& output : call.outputs) {
    const auto size = output.sizes[static_cast<size_t>(along)];
    if (size == 0 || size % blocks->size != 0) {
      return;
    }
    s.outputs.push_back(in_blocks(along, size / blocks->size, *blocks));
  }
  strategies.push_back(std::move(s));
}

Strategies split_rule(const OpCall& call, int64_t mesh_dim) {
  const auto ndim = call.inputs[0].dim();
  const auto along = call.dim_arg("dim", ndim);
  auto map = identity_map(ndim);
  map[static_cast<size_t>(along)] = -1;
  auto strategies = move_strategies(call, mesh_dim, map);
  add_split_of_blocks(call, mesh_dim, along, strategies);
  return strategies;
}

// Converts global split sizes to local sizes. They shrink by the same factor as
// the dimension shrinks to this rank's shard.
void localize_split(const OpCall& call, Decision& decision) {
  decision.is_plain_call = true;
  const auto along = call.dim_arg("dim", call.inputs[0].dim());
  const auto& layout = decision.layout_of(call, 0);
  if (!layout.mesh().contains_this_rank()) {
    return; // outside the mesh, without a local shard
  }
  const auto dim_size = layout.sizes()[static_cast<size_t>(along)];
  const auto local = layout.local_sizes()[static_cast<size_t>(along)];
  if (local == dim_size) {
    return;
  }
  const bool is_one = call.has_arg("split_size");
  const auto index = call.arg_index(is_one ? "split_size" : "split_sizes");
  if (is_one) {
    // A larger size also gives one result, and could overflow.
    const auto split_size = std::min(call.int_arg("split_size"), dim_size);
    const auto size = split_size * local / dim_size;
    decision.is_plain_call = size > 0;
    decision.args.emplace_back(index, size);
    return;
  }
  auto sizes = call.ints_arg("split_sizes");
  for (auto& size : sizes) {
    size = size * local / dim_size;
  }
  decision.args.emplace_back(index, sizes);
}

// Returns the map of pad. It keeps the dimensions that are not padded.
DimMap pad_map(const OpCall& call) {
  const auto pad = call.ints_arg("pad");
  auto map = identity_map(call.inputs[0].dim());
  for (size_t i = 0; i < pad.size(); ++i) {
    if (pad[i] != 0) {
      map[map.size() - 1 - i / 2] = -1;
    }
  }
  return map;
}

// Returns the strategies of pad. Padding with zeros keeps a sum; any other
// number would be added once per rank. Along a sharded dimension, ranks
// exchange rows, and pad their rows of the result.
Strategies pad_rule(const OpCall& call, int64_t mesh_dim) {
  const auto map = pad_map(call);
  const auto value = call.arg("value").toScalar();
  const auto dtype = call.outputs[0].dtype;
  DTENSOR_CHECK(
      at::isComplexType(dtype) || !value.isComplex() ||
          value.toComplexDouble().imag() == 0,
      "[{}] cannot pad {} with the complex number {}. Pass a real number.",
      call.name(),
      *call.inputs[0].spec,
      value);
  auto strategies = move_strategies(call, mesh_dim, map);
  if (call.inputs[0].placement(mesh_dim).is_partial() && !value.equal(0)) {
    strategies.pop_back();
  }
  const auto& self = call.inputs[0];
  for (size_t d = 0; d < map.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (map[d] < 0 && has_ranges(self, mesh_dim, dim) &&
        call.outputs[0].sizes[d] >= call.mesh.size(mesh_dim)) {
      strategies.push_back({{Shard(dim)}, {self.placement(mesh_dim)}});
    }
  }
  return strategies;
}

void note_padded_rows(const OpCall& call, Decision& decision) {
  note_moved_rows(call, decision, pad_map(call));
}

} // namespace

DTENSOR_RULES(concat) {
  // LibTorch makes the gradient of a skipped tensor from its sizes alone.
  rules.dim_rule("cat", cat_rule)
      .depends_on_backward()
      .with_traits({.gradient_from_sizes_only = true});
  rules.dim_rule("stack", stack_rule).depends_on_backward();
  for (const auto* name : {"split.Tensor", "unsafe_split.Tensor"}) {
    rules.dim_rule(name, split_rule)
        .with_localize(localize_split)
        .with_local_kernel(boxed(empty_split_local));
  }
  for (const auto* name : {"split_with_sizes", "unsafe_split_with_sizes"}) {
    rules.dim_rule(name, split_rule).with_localize(localize_split);
  }
  rules.dim_rule("constant_pad_nd", pad_rule)
      .with_localize(note_padded_rows)
      .with_local_kernel(boxed(constant_pad_local))
      .scalar_values();
}

} // namespace dtensor
