// SPDX-License-Identifier: BSD-3-Clause
// Indexing with tensors. Every rank looks up its shard of the indices in the
// replicated tensor, or all indices in its shard of the tensor. Lookups are
// regions: their gradients stay local.
#include <dtensor/error.h>
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/families_impl.h>
#include <dtensor/ops/kernels/local_kernels_impl.h>
#include <dtensor/ops/registry.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <ATen/core/Tensor.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

namespace dtensor {
namespace {

bool is_sum(const Placement& p) {
  return p.is_partial(ReduceOp::kSum) || p.is_partial(ReduceOp::kAvg);
}

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

// Adds the strategy for a partial self: values that are only picked may be
// picked before they are reduced.
void pick_partial(const OpCall& call, int64_t mesh_dim, Strategies& all) {
  const auto& self = call.inputs[0].placement(mesh_dim);
  if (self.is_partial()) {
    Strategy s{{self}, Placements(call.inputs.size(), Replicate())};
    s.inputs[0] = self;
    all.push_back(std::move(s));
  }
}

// Adds the strategy for a self that is sharded along the indexed dimension:
// each rank looks up its elements, and has zeros for the others.
void look_up_shards(const OpCall& call, int64_t along, Strategies& all) {
  if (call.inputs[0].spec->dtype() != at::kBool) {
    all.push_back({{Partial(ReduceOp::kSum)}, {Shard(along), Replicate()}});
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

// Returns true if operands differ in their number of dimensions: a tensor
// without dimensions counts as one of one element.
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

// Returns the strategies of operators on self, a list of indices of one
// dimension, and a source that has the list's length there (or is a number).
Strategies index_write_rule(const OpCall& call, int64_t) {
  const auto along = indexed_dim(call);
  const bool has_source = call.has_arg("source");
  Strategies strategies;
  for (int64_t d = 0; d < call.inputs[0].dim(); ++d) {
    if (d == along && call.inputs[1].dim() != 1) {
      continue;
    }
    Strategy s{{Shard(d)}, Placements(call.inputs.size(), Replicate())};
    s.inputs[0] = Shard(d);
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
    const Placement sum = Partial(ReduceOp::kSum);
    strategies.push_back({{sum}, {sum, Shard(0), Shard(indexed_dim(call))}});
  }
  return strategies;
}

// Dimensions of an indexing x[i, :, j]: the dimensions of x that are indexed,
// and the positions of all others and of the (broadcast) index dimensions in
// the result.
struct Indexed {
  std::vector<int64_t> position; // of each dim of x; -1: indexed
  std::vector<Sizes> indices;    // sizes of the index tensors
  int64_t first = 0;             // position of the dims of the indices
  int64_t ndim = 0;              // number of dims of the indices
  int64_t result_dim = 0;
  bool has_mask = false;

  int64_t index_size(int64_t k) const {
    int64_t size = 1;
    for (const auto& sizes : indices) {
      const auto d = k - ndim + static_cast<int64_t>(sizes.size());
      size = d >= 0 && size == 1 ? sizes[static_cast<size_t>(d)] : size;
    }
    return size;
  }
};

bool is_mask(const at::Tensor& index) {
  return index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
}

// Marks the dims that indices take, in argument order.
void mark_indexed(const OpCall& call, Indexed& x) {
  size_t dim = 0;
  for (const c10::IValue& item : call.arg("indices").toListRef()) {
    if (item.isNone() || !item.toTensor().defined()) {
      ++dim;
      continue;
    }
    const auto& index = item.toTensor();
    const auto takes = is_mask(index) ? index.dim() : 1;
    x.has_mask |= is_mask(index);
    x.ndim = std::max(x.ndim, is_mask(index) ? 1 : index.dim());
    x.indices.emplace_back(index.sizes().begin(), index.sizes().end());
    for (int64_t i = 0; i < takes; ++i) {
      x.position[dim++] = -1;
    }
  }
}

Indexed indexed(const OpCall& call) {
  Indexed x;
  x.position.resize(static_cast<size_t>(call.inputs[0].dim()), 0);
  mark_indexed(call, x);
  const auto begin = std::ranges::find(x.position, -1);
  const auto end =
      std::find_if(begin, x.position.end(), [](auto p) { return p >= 0; });
  const bool adjacent =
      std::find(end, x.position.end(), -1) == x.position.end();
  x.first = adjacent ? begin - x.position.begin() : 0;
  int64_t kept = 0;
  for (auto& p : x.position) {
    if (p >= 0) {
      p = kept < x.first ? kept : kept + x.ndim;
      ++kept;
    }
  }
  x.result_dim = kept + x.ndim;
  return x;
}

// Returns the placement of an operand of `sizes` that broadcasts to
// `result_dim` dims, where dim `dim` of the result is sharded.
Placement broadcast_shard(SizesRef sizes, int64_t dim, int64_t result_dim) {
  const auto d = dim - result_dim + static_cast<int64_t>(sizes.size());
  return d < 0 || sizes[static_cast<size_t>(d)] == 1 ? Replicate() : Shard(d);
}

Strategies index_rule(const OpCall& call, int64_t mesh_dim) {
  const auto x = indexed(call);
  Strategies strategies;
  for (size_t d = 0; d < x.position.size(); ++d) {
    if (x.position[d] >= 0) {
      Strategy s{
          {Shard(x.position[d])}, Placements(call.inputs.size(), Replicate())};
      s.inputs[0] = Shard(static_cast<int64_t>(d));
      strategies.push_back(std::move(s));
    }
  }
  for (int64_t k = 0; k < x.ndim && !x.has_mask; ++k) {
    if (x.index_size(k) == 1) {
      continue;
    }
    Strategy s{{Shard(x.first + k)}, {Replicate()}};
    for (const auto& sizes : x.indices) {
      s.inputs.push_back(broadcast_shard(sizes, k, x.ndim));
    }
    strategies.push_back(std::move(s));
  }
  pick_partial(call, mesh_dim, strategies);
  return strategies;
}

// Returns the shape of the indexed elements; -1 where the count depends on a
// mask.
Sizes indexed_shape(const OpCall& call, const Indexed& x) {
  Sizes shape(static_cast<size_t>(x.result_dim), 1);
  for (size_t d = 0; d < x.position.size(); ++d) {
    if (x.position[d] >= 0) {
      shape[static_cast<size_t>(x.position[d])] = call.inputs[0].sizes()[d];
    }
  }
  for (int64_t k = 0; k < x.ndim; ++k) {
    shape[static_cast<size_t>(x.first + k)] = x.has_mask ? -1 : x.index_size(k);
  }
  return shape;
}

// Checks the global shape of the values. Shards of too few values could
// broadcast to the local shards of x.
void check_values(const OpCall& call) {
  const auto shape = indexed_shape(call, indexed(call));
  const auto values = call.inputs.back().sizes();
  bool fits = values.size() <= shape.size();
  for (size_t i = 0; fits && i < values.size(); ++i) {
    const auto wanted = shape[shape.size() - values.size() + i];
    fits = values[i] == 1 || wanted < 0 || values[i] == wanted;
  }
  DTENSOR_CHECK(
      fits,
      "[{}] values of shape {} cannot be broadcast to the elements that the "
      "indices select, of shape {}. Pass values of that shape.",
      call.name(),
      at::IntArrayRef(values),
      at::IntArrayRef(shape));
}

std::vector<OutputMeta> index_put_meta(const OpCall& call) {
  check_values(call);
  return like_first_input(call);
}

// Adds the strategies of x[mask] = values, where x and the mask are sharded
// alike, and each selected element gets the same values.
void add_mask_strategies(
    const OpCall& call,
    const Indexed& x,
    Strategies& strategies) {
  const auto values = call.inputs.back().sizes();
  if (!x.has_mask || x.indices.size() != 1 ||
      !broadcast_shard(values, x.first, x.result_dim).is_replicate()) {
    return;
  }
  int64_t mask_dim = 0;
  for (size_t d = 0; d < x.position.size(); ++d) {
    if (x.position[d] < 0) {
      const auto self = Shard(static_cast<int64_t>(d));
      strategies.push_back({{self}, {self, Shard(mask_dim++), Replicate()}});
    }
  }
}

Strategies index_put_rule(const OpCall& call, int64_t mesh_dim) {
  const auto x = indexed(call);
  const auto& values = call.inputs.back();
  Strategies strategies;
  for (size_t d = 0; d < x.position.size(); ++d) {
    if (x.position[d] >= 0) {
      const auto self = Shard(static_cast<int64_t>(d));
      Strategy s{{self}, Placements(call.inputs.size(), Replicate())};
      s.inputs.front() = self;
      s.inputs.back() =
          broadcast_shard(values.sizes(), x.position[d], x.result_dim);
      strategies.push_back(std::move(s));
    }
  }
  add_mask_strategies(call, x, strategies);
  const auto& self = call.inputs[0].placement(mesh_dim);
  if (call.bool_arg("accumulate") && is_sum(self) &&
      values.placement(mesh_dim) == self) {
    Strategy s{{self}, Placements(call.inputs.size(), Replicate())};
    s.inputs.front() = s.inputs.back() = self;
    strategies.push_back(std::move(s));
  }
  return strategies;
}

} // namespace

DTENSOR_RULES(indexing) {
  const auto looks_up = [](OpRule& rule) {
    rule.with_localize(detail::note_sharded_dim)
        .with_local_kernel(detail::boxed(detail::look_up_local))
        .as_region();
  };
  const auto writes = [](OpRule& rule) -> OpRule& {
    return rule.with_localize(detail::note_sharded_dim)
        .with_local_kernel(detail::boxed(detail::write_at_indices_local));
  };
  looks_up(rules.dim_rule("index_select", index_select_rule)
               .with_meta(index_select_meta));
  looks_up(rules.dim_rule("gather", gather_rule));
  rules.dim_rule("index.Tensor", index_rule)
      .with_kernel(detail::index_shards_by_mask, detail::indexes_shards_by_mask)
      .as_region();
  for (const auto* name :
       {"scatter.src",
        "scatter.value",
        "scatter.reduce",
        "scatter.value_reduce",
        "scatter_reduce.two"}) {
    writes(rules.dim_rule(name, scatter_rule));
  }
  // torch::nn::utils::rnn and torch::nn::init write plain tensors by these
  // operators.
  rules.traits("scatter_.src", {.accepts_plain_source = true});
  rules.traits("index_put_", {.accepts_plain_source = true});
  writes(rules.dim_rule("scatter_add", scatter_add_rule));
  writes(rules.dim_rule("index_add", index_add_rule)).depends_on_backward();
  writes(rules.dim_rule("index_copy", index_write_rule));
  writes(rules.dim_rule("index_reduce", index_write_rule));
  for (const auto* name : {"index_fill.int_Scalar", "index_fill.int_Tensor"}) {
    writes(rules.dim_rule(name, index_write_rule).with_meta(like_first_input));
  }
  for (const auto* name : {"index_put", "_index_put_impl"}) {
    rules.dim_rule(name, index_put_rule)
        .with_meta(index_put_meta)
        .depends_on_backward();
  }
}

} // namespace dtensor
