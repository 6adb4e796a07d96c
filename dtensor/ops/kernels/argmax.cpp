// SPDX-License-Identifier: BSD-3-Clause
// argmax and argmin over a sharded dimension: each rank finds its local
// candidate, and the ranks compare candidates.
#include <dtensor/ops/kernels/local_kernels_impl.h>

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/ops/kernels/global_indices_impl.h>
#include <dtensor/ops/kernels/kernel_args_impl.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <limits>

namespace dtensor {
namespace {

using detail::KernelArgs;

// Values and their indices in the global dimension, stacked in one tensor. Its
// dtype represents both.
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

struct Search {
  bool greatest;
  int64_t dim;

  Candidates here(const at::Tensor& part, const Intervals& held) const {
    const auto dtype = common_dtype(part.scalar_type());
    if (part.size(dim) == 0) {
      return nothing(part, dtype);
    }
    const auto place = greatest ? at::argmax(part, dim, /*keepdim=*/true)
                                : at::argmin(part, dim, /*keepdim=*/true);
    return {at::stack(
        {part.gather(dim, place).to(dtype),
         detail::to_global_indices(place, held).to(dtype)})};
  }

  // Returns the candidate of an empty shard, which loses to every other
  // candidate.
  Candidates nothing(const at::Tensor& part, at::ScalarType dtype) const {
    auto sizes = part.sizes().vec();
    sizes[static_cast<size_t>(dim)] = 1;
    const auto options = part.options().dtype(dtype);
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
};

void find(KernelArgs& args, const Decision& decision, bool greatest) {
  const auto part = args.tensor("self");
  if (part.is_meta()) {
    args.run_operator();
    return;
  }
  const auto& spec = *decision.inputs[0];
  const auto dim = c10::maybe_wrap_dim(args.integer("dim"), spec.dim());
  const Search search{greatest, dim};
  auto best = search.here(part, local_intervals(spec, dim));
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    if (!spec.placements()[static_cast<size_t>(m)].is_sharded(dim)) {
      continue;
    }
    const auto all =
        get_group(spec.mesh(), m).all_gather(best.both.unsqueeze(0), 0);
    best = {all[0]};
    for (int64_t rank = 1; rank < all.size(0); ++rank) {
      best = search.better(best, {all[rank]});
    }
  }
  auto places = best.places().to(at::kLong);
  args.returns(args.flag("keepdim") ? places : places.squeeze(dim));
}

} // namespace

void detail::argmax_local(KernelArgs& args, const Decision& decision) {
  find(args, decision, /*greatest=*/true);
}

void detail::argmin_local(KernelArgs& args, const Decision& decision) {
  find(args, decision, /*greatest=*/false);
}

} // namespace dtensor
