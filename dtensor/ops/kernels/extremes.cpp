// SPDX-License-Identifier: BSD-3-Clause
// The greatest or least elements of sharded dimensions, and their indices. Each
// rank finds its local candidates, and the ranks compare these candidates.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/full.h>
#include <ATen/ops/max.h>
#include <ATen/ops/min.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/WrapDimMinimal.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/ops/kernels/index_kernels_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>
#include <dtensor/ops/kernels/sorted_rows_impl.h>

#include <limits>
#include <optional>
#include <tuple>

namespace dtensor::detail {
namespace {

// Values and their global indices, stacked in one tensor. Its dtype represents
// both.
struct Candidates {
  at::Tensor both; // (2, ...)

  at::Tensor values() const {
    return both.select(0, 0);
  }
  at::Tensor places() const {
    return both.select(0, 1);
  }
};

at::ScalarType common_dtype(at::ScalarType dtype) {
  return at::isFloatingType(dtype) ? at::kDouble : at::kLong;
}

Candidates candidates_of(const at::Tensor& values, const at::Tensor& places) {
  const auto dtype = common_dtype(values.scalar_type());
  return {at::stack({values.to(dtype), places.to(dtype)})};
}

struct Search {
  bool greatest;

  // Returns the candidates of a shard without elements, which lose to all
  // others.
  Candidates nothing(at::IntArrayRef sizes, const at::Tensor& shard) const {
    const auto dtype = common_dtype(shard.scalar_type());
    const auto options = shard.options().dtype(dtype);
    const auto worst = [&]() -> at::Scalar {
      if (dtype == at::kDouble) {
        const auto infinity = std::numeric_limits<double>::infinity();
        return greatest ? -infinity : infinity;
      }
      using Limits = std::numeric_limits<int64_t>;
      return greatest ? Limits::lowest() : Limits::max();
    }();
    constexpr int64_t kBehindAll = int64_t{1} << 53;
    return {at::stack(
        {at::full(sizes, worst, options),
         at::full(sizes, kBehindAll, options)})};
  }

  // Returns the better candidates by the rules of the plain operator: NaN beats
  // any number, and of equal values the first wins.
  Candidates better(const Candidates& a, const Candidates& b) const {
    const auto a_none = a.values().isnan();
    const auto b_none = b.values().isnan();
    const auto beats =
        greatest ? a.values() > b.values() : a.values() < b.values();
    const auto equals =
        (a.values() == b.values()).logical_or(a_none.logical_and(b_none));
    const auto wins =
        a_none.logical_and(b_none.logical_not())
            .logical_or(beats.logical_and(b_none.logical_not()))
            .logical_or(equals.logical_and(a.places() < b.places()));
    return {at::where(wins, a.both, b.both)};
  }

  // Returns the best of the candidates of all ranks that have other shards of
  // dimension `dim`, or of any dimension.
  Candidates best_of_ranks(
      Candidates best,
      const Spec& spec,
      std::optional<int64_t> dim) const {
    for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
      const auto& p = spec.placements()[static_cast<size_t>(m)];
      if (dim ? p.is_sharded(*dim) : p.is_sharded()) {
        const auto all =
            get_group(spec.mesh(), m).all_gather(best.both.unsqueeze(0), 0);
        best = {all[0]};
        for (int64_t rank = 1; rank < all.size(0); ++rank) {
          best = better(best, {all[rank]});
        }
      }
    }
    return best;
  }
};

// --- extremes along one dimension --------------------------------------------

// Finds the elements with the operator of the call, because on a GPU operators
// may choose differently among equal elements.
std::tuple<at::Tensor, at::Tensor>
find_local(const at::Tensor& shard, int64_t dim, bool greatest, bool by_place) {
  if (!by_place) {
    return greatest ? at::max(shard, dim, /*keepdim=*/true)
                    : at::min(shard, dim, /*keepdim=*/true);
  }
  const auto place = greatest ? at::argmax(shard, dim, /*keepdim=*/true)
                              : at::argmin(shard, dim, /*keepdim=*/true);
  return {shard.gather(dim, place), place};
}

// Returns the candidates of all ranks along a dimension, which is kept with
// size 1.
Candidates find_along(
    const at::Tensor& shard,
    const Spec& spec,
    int64_t dim,
    bool greatest,
    bool by_place) {
  const Search search{greatest};
  Candidates best;
  if (shard.size(dim) == 0) {
    auto sizes = shard.sizes().vec();
    sizes[static_cast<size_t>(dim)] = 1;
    // Throws for the same dtypes as a call on ranks with elements does.
    find_local(at::zeros(sizes, shard.options()), dim, greatest, by_place);
    best = search.nothing(sizes, shard);
  } else {
    const auto [values, places] = find_local(shard, dim, greatest, by_place);
    best = candidates_of(
        values, to_global_indices(places, local_intervals(spec, dim)));
  }
  return search.best_of_ranks(best, spec, dim);
}

// --- extremes of all elements ------------------------------------------------

// Converts a position in the flattened shard to the position in the flattened
// tensor.
at::Tensor to_global_position(
    const at::Tensor& local,
    const at::Tensor& shard,
    const Spec& spec) {
  auto rest = local;
  auto position = at::zeros_like(local);
  int64_t stride = 1;
  for (int64_t d = spec.dim() - 1; d >= 0; --d) {
    const auto index = rest.remainder(shard.size(d));
    rest = rest.floor_divide(shard.size(d));
    position =
        position + to_global_indices(index, local_intervals(spec, d)) * stride;
    stride *= spec.sizes()[static_cast<size_t>(d)];
  }
  return position;
}

// Returns the place of the extreme of all elements, (1).
at::Tensor
find_place_of_all(const at::Tensor& shard, const Spec& spec, bool greatest) {
  const Search search{greatest};
  Candidates best;
  if (shard.numel() == 0) {
    find_local(at::zeros({1}, shard.options()), 0, greatest, true); // may throw
    best = search.nothing({1}, shard);
  } else {
    const auto flat = shard.reshape({-1});
    const auto [value, place] =
        find_local(flat, 0, greatest, /*by_place=*/true);
    best = candidates_of(value, to_global_position(place, shard, spec));
  }
  return search.best_of_ranks(best, spec, std::nullopt).places();
}

// --- operators ---------------------------------------------------------------

void find_place(KernelArgs& args, const Decision& decision, bool greatest) {
  const auto shard = args.tensor("self");
  if (shard.is_meta()) {
    return args.run_operator();
  }
  const auto& spec = *decision.inputs[0];
  at::Tensor places;
  if (args.is_none("dim")) {
    places = find_place_of_all(shard, spec, greatest);
  } else {
    const auto dim = c10::maybe_wrap_dim(args.integer("dim"), spec.dim());
    places = find_along(shard, spec, dim, greatest, /*by_place=*/true).places();
  }
  args.returns(
      places.to(at::kLong).reshape(decision.outputs[0]->local_sizes()));
}

void find_both(KernelArgs& args, const Decision& decision, bool greatest) {
  if (return_without_data(args, decision)) {
    return;
  }
  const auto shard = args.tensor("self");
  const auto& spec = decision.inputs[0];
  const auto dim = c10::maybe_wrap_dim(args.integer("dim"), spec->dim());
  const auto best =
      find_along(shard.detach(), *spec, dim, greatest, /*by_place=*/false);
  const auto indices = best.places().to(at::kLong);
  const auto values = picked_from_shards(
      shard, best.values().to(shard.scalar_type()), indices, dim, spec);
  const auto sizes = decision.outputs[0]->local_sizes();
  args.returns(values.reshape(sizes), indices.reshape(sizes));
}

} // namespace

void argmax_local(KernelArgs& args, const Decision& decision) {
  find_place(args, decision, /*greatest=*/true);
}

void argmin_local(KernelArgs& args, const Decision& decision) {
  find_place(args, decision, /*greatest=*/false);
}

void greatest_with_index_local(KernelArgs& args, const Decision& decision) {
  find_both(args, decision, /*greatest=*/true);
}

void least_with_index_local(KernelArgs& args, const Decision& decision) {
  find_both(args, decision, /*greatest=*/false);
}

} // namespace dtensor::detail
