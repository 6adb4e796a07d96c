// SPDX-License-Identifier: BSD-3-Clause
// Indexing with tensors. Every rank looks up its shard of the indices in the
// replicated tensor, or all indices in its shard of the tensor. Lookups are
// regions, so their gradients stay local. (tensor_index.cpp has the strategies
// of x[i, :, j].)
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/index_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>
#include <dtensor/ops/rules/tensor_index_impl.h>

#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

namespace dtensor {
namespace {

using namespace detail;

int64_t indexed_dim(const OpCall& call) {
  return c10::maybe_wrap_dim(call.int_arg("dim"), call.inputs[0].dim());
}

std::vector<OutputMeta> index_select_meta(const OpCall& call) {
  auto out = like_first_input(call);
  if (call.inputs[0].dim() > 0) {
    out[0].sizes[static_cast<size_t>(indexed_dim(call))] =
        call.inputs[1].spec->numel();
  }
  out[0].strides = dtensor::contiguous_strides(out[0].sizes);
  return out;
}

// Adds the strategy for a self that is sharded along the indexed dimension:
// each rank looks up its elements, and has zeros for the others.
void look_up_shards(const OpCall& call, int64_t along, Strategies& all) {
  if (looks_up_shards(call)) {
    all.push_back({{partial_sum()}, {Shard(along), Replicate()}});
  }
}

Strategies index_select_rule(const OpCall& call, int64_t mesh_dim) {
  const auto along = indexed_dim(call);
  Strategies strategies;
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    if (d != along) {
      strategies.push_back({{Shard(d)}, {Shard(d), Replicate()}});
    } else if (call.inputs[1].dim() == 1) {
      strategies.push_back({{Shard(d)}, {Replicate(), Shard(0)}});
      look_up_shards(call, along, strategies);
    }
  }
  pick_partial(call, mesh_dim, strategies);
  return strategies;
}

bool same_size(const OpCall& call, int64_t dim) {
  const auto at = static_cast<size_t>(dim);
  return std::ranges::all_of(call.inputs, [&](const OpInput& input) {
    return input.sizes()[at] == call.inputs[0].sizes()[at];
  });
}

// Returns true if operands differ in their number of dimensions. A tensor
// without dimensions counts as a vector of one element.
bool lacks_dims(const OpCall& call) {
  return std::ranges::any_of(call.inputs, [&](const OpInput& input) {
    return input.dim() != call.inputs[0].dim();
  });
}

Strategies gather_rule(const OpCall& call, int64_t mesh_dim) {
  const auto along = indexed_dim(call);
  Strategies strategies;
  if (lacks_dims(call)) {
    pick_partial(call, mesh_dim, strategies);
    return strategies;
  }
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    if (d == along) {
      strategies.push_back({{Shard(d)}, {Replicate(), Shard(d)}});
      look_up_shards(call, along, strategies);
    } else if (same_size(call, d)) {
      strategies.push_back({{Shard(d)}, {Shard(d), Shard(d)}});
    }
  }
  pick_partial(call, mesh_dim, strategies);
  return strategies;
}

// Returns the strategies of scatter: self, index and source are sharded alike
// in the dimensions in which they have equal size and that are not indexed. The
// indexed dimension may be sharded in self.
Strategies scatter_rule(const OpCall& call, int64_t) {
  const auto along = indexed_dim(call);
  Strategies strategies;
  if (lacks_dims(call)) {
    return strategies;
  }
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    if (d == along || same_size(call, d)) {
      const auto others = d == along ? Replicate() : Shard(d);
      strategies.push_back(
          {{Shard(d)}, Placements(call.inputs.size(), others)});
      strategies.back().inputs[0] = Shard(d);
    }
  }
  return strategies;
}

// Adds the strategy for (self, index, source) where self and source are partial
// sums.
void add_partial(const OpCall& call, int64_t mesh_dim, Strategies& all) {
  const auto& self = call.inputs[0].placement(mesh_dim);
  if (is_sum(self) && call.inputs[2].placement(mesh_dim) == self) {
    all.push_back({{self}, {self, Replicate(), self}});
  }
}

Strategies scatter_add_rule(const OpCall& call, int64_t mesh_dim) {
  auto strategies = scatter_rule(call, mesh_dim);
  add_partial(call, mesh_dim, strategies);
  return strategies;
}

std::vector<OutputMeta> index_fill_meta(const OpCall& call) {
  const auto& index = *call.inputs[1].spec;
  DTENSOR_CHECK_INDEX(
      index.dtype() == at::kLong,
      "[{}] the index, {}, has another dtype than i64. Convert it.",
      call.name(),
      index);
  return like_first_input(call);
}

// Checks the global sizes of the source. Shards of different sizes could fit
// on some ranks.
void check_source(const OpCall& call, int64_t along) {
  const auto& self = *call.inputs[0].spec;
  const auto& source = *call.inputs[2].spec;
  if (self.dim() == 0 || source.dim() == 0) {
    return;
  }
  Sizes wanted(self.sizes());
  wanted[static_cast<size_t>(along)] = call.inputs[1].spec->numel();
  DTENSOR_CHECK(
      source.sizes() == SizesRef(wanted),
      "[{}] the source, {}, does not fit {} and the indices. Pass a source of "
      "shape {}.",
      call.name(),
      source,
      self,
      at::IntArrayRef(wanted));
}

// Returns the strategies of operators on self, a list of indices of one
// dimension, and a source that has the list's length there (or is a number).
Strategies index_write_rule(const OpCall& call, int64_t) {
  const auto along = indexed_dim(call);
  const bool has_source = call.has_arg("source");
  if (has_source) {
    check_source(call, along);
  }
  Strategies strategies;
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    if (d == along && call.inputs[1].dim() != 1) {
      continue;
    }
    auto s = replicated_except(call, {Shard(d)}, {{0, Shard(d)}});
    if (d != along && has_source && call.inputs[2].dim() > 0) {
      s.inputs[2] = Shard(d);
    }
    strategies.push_back(std::move(s));
  }
  return strategies;
}

// Returns the strategies of index_add. Ranks may add their rows of a sharded
// source to a term of a partial sum.
Strategies index_add_rule(const OpCall& call, int64_t mesh_dim) {
  auto strategies = index_write_rule(call, mesh_dim);
  add_partial(call, mesh_dim, strategies);
  const auto& source = call.inputs[2];
  if (call.inputs[1].dim() == 1 && source.dim() == call.inputs[0].dim() &&
      !at::isIntegralType(source.spec->dtype(), /*includeBool=*/true)) {
    strategies.push_back(
        {{partial_sum()}, {partial_sum(), Shard(0), Shard(indexed_dim(call))}});
  }
  return strategies;
}

} // namespace

DTENSOR_RULES(indexing) {
  const auto looks_up = [](OpRule& rule) {
    rule.with_localize(note_sharded_dim)
        .with_local_kernel(boxed(look_up_local))
        .as_region();
  };
  const auto writes = [](OpRule& rule) -> OpRule& {
    return rule.with_localize(note_sharded_dim)
        .with_local_kernel(boxed(write_at_indices_local));
  };
  looks_up(rules.dim_rule("index_select", index_select_rule)
               .with_meta(index_select_meta));
  looks_up(rules.dim_rule("gather", gather_rule));
  rules.dim_rule("index.Tensor", index_strategies)
      .with_kernel(index_shards_by_mask, indexes_shards_by_mask)
      .with_localize(note_indexed_dims)
      .with_local_kernel(boxed(look_up_tensor_index_local))
      .as_region();
  for (const auto* name :
       {"scatter.src",
        "scatter.value",
        "scatter.reduce",
        "scatter.value_reduce",
        "scatter_reduce.two"}) {
    writes(rules.dim_rule(name, scatter_rule));
  }
  // torch::nn::utils::rnn and torch::nn::init write plain tensors with these
  // operators.
  rules.traits("scatter_.src", {.accepts_plain_source = true});
  rules.traits(
      "index_put_", {.accepts_plain_source = true, .writes_expanded = true});
  for (const auto* name :
       {"_index_put_impl_",
        "index_fill_.int_Scalar",
        "index_fill_.int_Tensor"}) {
    rules.traits(name, {.writes_expanded = true});
  }
  writes(rules.dim_rule("scatter_add", scatter_add_rule));
  writes(rules.dim_rule("index_add", index_add_rule)).depends_on_backward();
  writes(rules.dim_rule("index_copy", index_write_rule));
  writes(rules.dim_rule("index_reduce", index_write_rule));
  for (const auto* name : {"index_fill.int_Scalar", "index_fill.int_Tensor"}) {
    writes(rules.dim_rule(name, index_write_rule).with_meta(index_fill_meta));
  }
  for (const auto* name : {"index_put", "_index_put_impl"}) {
    rules.dim_rule(name, index_put_strategies)
        .with_meta(index_put_meta)
        .with_localize(note_indexed_dims)
        .with_local_kernel(boxed(write_tensor_index_local))
        .depends_on_backward();
  }
}

} // namespace dtensor
