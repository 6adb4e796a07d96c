// SPDX-License-Identifier: BSD-3-Clause
// DTensors in a context_parallel scope. The sequence is sharded over the
// scope's ranks. On every other mesh dimension query, key and value are
// redistributed to layouts in which a rank computes its heads and batches
// without communication:
//
//   (cp, tp), 8 query heads, 2 of keys:   q S(2) S(1), k S(2) S(1)
//   the same on 4 ranks of tp:            q S(2) S(1), k S(2) R
//
// In the second case a rank selects the key heads of its query heads.
#include <dtensor/parallel/attention/context_attention_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/intervals_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/autograd_impl.h>
#include <dtensor/tensor/memory_order_impl.h>
#include <dtensor/tensor/meta_impl.h>

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <array>
#include <utility>

namespace dtensor::detail {
namespace {

// Query, key and value.
using QueryKeyValue = std::array<at::Tensor, 3>;
using Layouts = std::array<Placements, 3>;

constexpr int64_t kTokensFromEnd = 2;
constexpr int64_t kHeadsFromEnd = 3;

// Returns the dimension of `mesh` along which the ranks are those of the scope.
std::optional<int64_t> dim_of(const DeviceMesh& mesh, const DeviceMesh& scope) {
  for (int64_t m = 0; mesh.contains_this_rank() && m < mesh.ndim(); ++m) {
    if (get_group(mesh, m).ranks() == scope.ranks()) {
      return m;
    }
  }
  return std::nullopt;
}

bool share_a_mesh(const QueryKeyValue& all) {
  return std::ranges::all_of(all, [&](const at::Tensor& t) {
    return is_dtensor(t) && spec_of(t)->mesh() == spec_of(all[0])->mesh() &&
        t.dim() >= 2;
  });
}

bool shards_tokens(const QueryKeyValue& all, int64_t mesh_dim) {
  return std::ranges::any_of(all, [&](const at::Tensor& t) {
    return spec_of(t)->placements()[static_cast<size_t>(mesh_dim)].is_sharded(
        t.dim() - kTokensFromEnd);
  });
}

int64_t size_from_end(const at::Tensor& t, int64_t place) {
  return place <= t.dim() ? t.size(t.dim() - place) : 1;
}

// Chooses layouts of query, key and value, one mesh dimension after the other.
class LayoutsFor {
 public:
  LayoutsFor(const QueryKeyValue& all, bool grouped, int64_t tokens_dim)
      : all_(all),
        grouped_(grouped),
        tokens_dim_(tokens_dim) {}

  Layouts choose() const {
    Layouts layouts;
    for (int64_t m = 0; m < spec_of(all_[0])->mesh().ndim(); ++m) {
      const auto each = m == tokens_dim_ ? tokens() : beside(m, layouts);
      for (size_t i = 0; i < all_.size(); ++i) {
        layouts[i].push_back(each[i]);
      }
    }
    return layouts;
  }

 private:
  using OnOneDim = std::array<Placement, 3>;

  const Placement& now(size_t operand, int64_t m) const {
    return spec_of(all_[operand])->placements()[static_cast<size_t>(m)];
  }

  OnOneDim tokens() const {
    OnOneDim each;
    for (size_t i = 0; i < all_.size(); ++i) {
      each[i] = Shard(all_[i].dim() - kTokensFromEnd);
    }
    return each;
  }

  // Returns the query's sharding of a batch dimension or of heads, as layouts
  // for all operands.
  OnOneDim beside(int64_t m, const Layouts& before) const {
    const auto& sharding = now(0, m);
    const int64_t place = all_[0].dim() - sharding.dim();
    if (!sharding.is_sharded() || place < kHeadsFromEnd) {
      return {};
    }
    return place == kHeadsFromEnd && grouped_ ? by_groups(m, sharding, before)
                                              : alike(sharding, place);
  }

  OnOneDim alike(const Placement& sharding, int64_t place) const {
    OnOneDim each = {sharding};
    for (size_t i = 1; i < all_.size(); ++i) {
      const int64_t size = size_from_end(all_[i], place);
      if (size == size_from_end(all_[0], place)) {
        each[i] = sharding.with_dim(all_[i].dim() - place);
      } else if (size != 1) {
        return {}; // query is broadcast
      }
    }
    return each;
  }

  // Shards complete groups of heads. If there are too few key heads, keys stay
  // replicated, and no later mesh dimension may shard them either.
  OnOneDim
  by_groups(int64_t m, const Placement& sharding, const Layouts& before) const {
    const int64_t heads = size_from_end(all_[1], kHeadsFromEnd);
    const bool has_groups =
        heads >= spec_of(all_[0])->mesh().size(m) && sharding.is_shard();
    if (!has_groups || has_more_keys(before)) {
      return {sharding};
    }
    const int64_t each = size_from_end(all_[0], kHeadsFromEnd) / heads;
    return {
        Shard(all_[0].dim() - kHeadsFromEnd, each),
        Shard(all_[1].dim() - kHeadsFromEnd),
        Shard(all_[2].dim() - kHeadsFromEnd)};
  }

  bool has_more_keys(const Layouts& before) const {
    for (size_t m = 0; m < before[0].size(); ++m) {
      if (before[0][m].is_sharded(all_[0].dim() - kHeadsFromEnd) &&
          !before[1][m].is_sharded()) {
        return true;
      }
    }
    return false;
  }

  const QueryKeyValue& all_;
  bool grouped_;
  int64_t tokens_dim_;
};

// Keys or values that are replicated where the query is sharded serve only some
// queries on each rank, so their gradients are Partial.
Placements gradient_layout(const Placements& layout, const Placements& query) {
  Placements result = layout;
  for (size_t m = 0; m < layout.size(); ++m) {
    if (layout[m].is_replicate() && query[m].is_sharded()) {
      result[m] = Partial();
    }
  }
  return result;
}

std::vector<int64_t> heads_here(const at::Tensor& t) {
  return indices_in(local_intervals(*spec_of(t), t.dim() - kHeadsFromEnd));
}

// Returns the index of each query head's key head among the local key heads.
// Returns nullopt if the heads already are in the groups that the operator
// expects.
std::optional<std::vector<int64_t>> picked_heads(
    const at::Tensor& query,
    const at::Tensor& key) {
  const auto queries = heads_here(query);
  const auto keys = heads_here(key);
  const int64_t heads = size_from_end(key, kHeadsFromEnd);
  const int64_t each =
      heads == 0 ? 1 : size_from_end(query, kHeadsFromEnd) / heads;
  const int64_t here =
      keys.empty() ? 0 : static_cast<int64_t>(queries.size() / keys.size());
  std::vector<int64_t> places;
  bool in_groups = queries.size() == keys.size() * static_cast<size_t>(here);
  for (size_t i = 0; i < queries.size(); ++i) {
    const auto found = std::ranges::find(keys, queries[i] / each);
    TORCH_INTERNAL_ASSERT(found != keys.end(), *spec_of(query), *spec_of(key));
    places.push_back(found - keys.begin());
    in_groups &= here > 0 && places[i] == static_cast<int64_t>(i) / here;
  }
  return in_groups ? std::nullopt : std::optional(std::move(places));
}

QueryKeyValue brought_to(const QueryKeyValue& all, const Layouts& layouts) {
  QueryKeyValue result;
  for (size_t i = 0; i < all.size(); ++i) {
    result[i] = redistribute_autograd(
        all[i], spec_of(all[i])->with_placements(layouts[i]));
  }
  return result;
}

AttentionArgs local_args(const AttentionArgs& args, const QueryKeyValue& all) {
  AttentionArgs local = args;
  std::array<at::Tensor*, 3> parts = {&local.query, &local.key, &local.value};
  const Placements of_query(spec_of(all[0])->placements());
  for (size_t i = 0; i < all.size(); ++i) {
    const Placements own(spec_of(all[i])->placements());
    *parts[i] = to_local_autograd(all[i], gradient_layout(own, of_query));
  }
  if (args.grouped) {
    if (const auto places = picked_heads(all[0], all[1])) {
      const auto index = at::tensor(*places, at::kLong).to(local.key.device());
      local.key = local.key.index_select(-kHeadsFromEnd, index);
      local.value = local.value.index_select(-kHeadsFromEnd, index);
      local.grouped = false;
    }
  }
  return local;
}

// Returns the layout of the operator's result, which is the layout of the
// query.
SpecPtr output_spec(const QueryKeyValue& all, bool grouped) {
  const auto& query = all[0];
  int64_t dim = 0;
  for (const auto& t : all) {
    dim = std::max(dim, t.dim());
  }
  Sizes sizes;
  for (int64_t place = dim; place > kTokensFromEnd; --place) {
    int64_t size = size_from_end(query, place);
    for (size_t i = 1; i < all.size() && size == 1; ++i) {
      size = grouped && place == kHeadsFromEnd ? size
                                               : size_from_end(all[i], place);
    }
    sizes.push_back(size);
  }
  sizes.push_back(query.size(-2));
  sizes.push_back(all[2].size(-1));
  Placements placements(spec_of(query)->placements());
  for (auto& p : placements) {
    p = p.is_sharded() ? p.with_dim(p.dim() + dim - query.dim()) : p;
  }
  const auto strides = dim == query.dim()
      ? dense_strides(sizes, spec_of(query)->strides())
      : dtensor::contiguous_strides(sizes);
  return Spec::make(
      spec_of(query)->mesh(), placements, sizes, strides, query.scalar_type());
}

} // namespace

std::optional<int64_t> dim_of_tokens(
    const AttentionArgs& args,
    const ContextScope& scope) {
  const QueryKeyValue all = {args.query, args.key, args.value};
  if (!share_a_mesh(all)) {
    return std::nullopt;
  }
  const auto m = dim_of(spec_of(args.query)->mesh(), scope.mesh);
  return m && shards_tokens(all, *m) ? m : std::nullopt;
}

std::optional<at::Tensor> attend_dtensors(
    const AttentionArgs& args,
    const ContextScope& scope) {
  const QueryKeyValue given = {args.query, args.key, args.value};
  const auto& mesh = spec_of(args.query)->mesh();
  const auto m = dim_of_tokens(args, scope);
  if (!m) {
    return std::nullopt;
  }
  check_context_call(args);
  const LayoutsFor layouts(given, args.grouped, *m);
  const auto all = brought_to(given, layouts.choose());
  const auto to = output_spec(all, args.grouped);
  const auto tokens = [&](const at::Tensor& t) {
    return tokens_of_ranks(t.size(-2), scope.mesh.size(), scope.balanced);
  };
  const auto out = attend_local_shards(
      local_args(args, all),
      {mesh, *m},
      tokens(args.query),
      tokens(args.key),
      scope.method);
  return from_local_autograd(in_memory_order(out, to->strides()), to);
}

} // namespace dtensor::detail
