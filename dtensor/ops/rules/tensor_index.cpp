// SPDX-License-Identifier: BSD-3-Clause
// Indexing x[i, :, j]: the dimensions of x that the indices take, and the
// position of the index dimensions in the result.
#include <dtensor/ops/rules/tensor_index_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/ops/dim_map.h>
#include <dtensor/ops/kernels/index_kernels_impl.h>
#include <dtensor/ops/rules/shapes_impl.h>

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace dtensor {
namespace {

using namespace detail;

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

// Checks that x has the dimensions that the indices take, and that masks have
// the sizes of their dimensions. Shards of a mask could fit the local shards of
// x.
void check_indices(const OpCall& call) {
  const auto& self = *call.inputs[0].spec;
  size_t end = 0;
  for (const c10::IValue& item : call.arg("indices").toListRef()) {
    const bool is_given = item.isTensor() && item.toTensor().defined();
    const auto begin = end;
    const bool by_mask = is_given && is_mask(item.toTensor());
    end += by_mask ? item.toTensor().sizes().size() : 1;
    DTENSOR_CHECK_INDEX(
        end <= self.sizes().size(),
        "[{}] the indices take more dimensions than {} has. Pass at most one "
        "index for each dimension.",
        call.name(),
        self);
    DTENSOR_CHECK_INDEX(
        !by_mask ||
            self.sizes().slice(begin, end - begin) == item.toTensor().sizes(),
        "[{}] a mask of shape {} cannot select from dimensions of {} from {} "
        "on. Pass a mask of their shape.",
        call.name(),
        item.toTensor().sizes(),
        self,
        begin);
  }
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

// Checks the global shape of the values. If there are too few values, their
// shards could still broadcast to the local shards of x.
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

// Returns true for x[mask] = values where each selected element gets the same
// values. The mask may then be sharded like x.
bool writes_equal_values(const OpCall& call, const Indexed& x) {
  return x.has_mask && x.indices.size() == 1 &&
      broadcast_shard(call.inputs.back().sizes(), x.first, x.result_dim)
          .is_replicate();
}

// Adds the strategies that add sharded values at sharded indices to a term of a
// partial sum.
void add_terms(const OpCall& call, const Indexed& x, Strategies& all) {
  const auto dtype = call.inputs[0].spec->dtype();
  if (x.has_mask || !call.bool_arg("accumulate") ||
      at::isIntegralType(dtype, /*includeBool=*/true)) {
    return;
  }
  for (int64_t k = 0; k < x.ndim; ++k) {
    if (x.index_size(k) == 1) {
      continue;
    }
    Strategy s{{partial_sum()}, {partial_sum()}};
    for (const auto& sizes : x.indices) {
      s.inputs.push_back(broadcast_shard(sizes, k, x.ndim));
    }
    s.inputs.push_back(
        broadcast_shard(call.inputs.back().sizes(), x.first + k, x.result_dim));
    all.push_back(std::move(s));
  }
}

} // namespace

void detail::pick_partial(
    const OpCall& call,
    int64_t mesh_dim,
    Strategies& all) {
  const auto& self = call.inputs[0].placement(mesh_dim);
  if (self.is_partial()) {
    all.push_back(replicated_except(call, {self}, {{0, self}}));
  }
}

bool detail::looks_up_shards(const OpCall& call) {
  return call.inputs[0].spec->dtype() != at::kBool;
}

void detail::note_indexed_dims(const OpCall& call, Decision& decision) {
  const auto x = indexed(call);
  const auto& self = decision.layout_of(call, 0);
  bool is_plain = true;
  for (size_t d = 0; d < x.position.size(); ++d) {
    is_plain &= x.position[d] >= 0 || !self.is_sharded(static_cast<int64_t>(d));
  }
  is_plain |= call.has_arg("values") && writes_equal_values(call, x);
  set_plain_call(call, decision, is_plain);
}

Strategies detail::index_strategies(const OpCall& call, int64_t mesh_dim) {
  const auto x = indexed(call);
  const bool may_look_up = !x.has_mask && looks_up_shards(call);
  Strategies strategies;
  for (size_t d = 0; d < x.position.size(); ++d) {
    const bool is_kept = x.position[d] >= 0;
    if (is_kept || may_look_up) {
      strategies.push_back(replicated_except(
          call,
          {is_kept ? Shard(x.position[d]) : partial_sum()},
          {{0, Shard(static_cast<int64_t>(d))}}));
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

std::vector<OutputMeta> detail::index_put_meta(const OpCall& call) {
  check_indices(call);
  check_values(call);
  return like_first_input(call);
}

Strategies detail::index_put_strategies(const OpCall& call, int64_t mesh_dim) {
  const auto x = indexed(call);
  const auto& values = call.inputs.back();
  const bool shards_mask = writes_equal_values(call, x);
  Strategies strategies;
  int64_t mask_dim = 0;
  for (size_t d = 0; d < x.position.size(); ++d) {
    const auto self = Shard(static_cast<int64_t>(d));
    auto s = replicated_except(call, {self}, {{0, self}});
    if (x.position[d] >= 0) {
      s.inputs.back() =
          broadcast_shard(values.sizes(), x.position[d], x.result_dim);
    } else if (shards_mask) {
      s.inputs[1] = Shard(mask_dim++);
    }
    strategies.push_back(std::move(s));
  }
  add_terms(call, x, strategies);
  // Terms of values are written to terms of self. Replicated values become
  // terms without communication.
  const auto& self = call.inputs[0].placement(mesh_dim);
  if (call.bool_arg("accumulate") ? is_sum(self) : self.is_partial()) {
    strategies.push_back(replicated_except(
        call, {self}, {{0, self}, {call.inputs.size() - 1, self}}));
  }
  return strategies;
}

} // namespace dtensor
