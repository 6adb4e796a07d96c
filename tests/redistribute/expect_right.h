// SPDX-License-Identifier: BSD-3-Clause
// Checks that redistributing local tensors gives the local tensors of a
// directly sharded full tensor.
#pragma once

#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/execute.h>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace dtensor::testing {

// Returns this rank's local tensor of `full`, from the intervals of its layout.
inline at::Tensor cut_directly(at::Tensor full, const Spec& spec) {
  const auto& mesh = spec.mesh();
  for (int64_t dim = 0; dim < spec.dim(); ++dim) {
    std::vector<int64_t> indices;
    for (const Interval& interval : local_intervals(
             spec.sizes()[static_cast<size_t>(dim)],
             dim,
             mesh.shape(),
             spec.placements(),
             *mesh.get_coordinate())) {
      for (int64_t i = interval.begin; i < interval.end; ++i) {
        indices.push_back(i);
      }
    }
    full = full.index_select(dim, torch::tensor(indices, torch::kLong));
  }
  return full;
}

inline at::Tensor some_integers(const Spec& spec, int64_t seed) {
  const auto values = torch::arange(spec.numel(), torch::kDouble);
  return ((values * 7919 + seed * 104729 + 13).remainder(97) - 40)
      .reshape(spec.sizes());
}

// Returns the term number `index` of `count` that sum to `full` (times
// `averaged`). All terms except number 0 depend only on their index.
inline at::Tensor summand(
    const at::Tensor& full,
    const Spec& spec,
    int64_t index,
    int64_t count,
    int64_t averaged) {
  if (index > 0) {
    return some_integers(spec, index);
  }
  at::Tensor rest = full * averaged;
  for (int64_t i = 1; i < count; ++i) {
    rest = rest - some_integers(spec, i);
  }
  return rest;
}

// Returns the term of a maximum: each element is full on one rank and smaller
// on the others.
inline at::Tensor below_maximum(
    const at::Tensor& full,
    const Spec& spec,
    int64_t index,
    int64_t count) {
  const auto owner =
      torch::arange(spec.numel()).remainder(count).reshape(spec.sizes());
  return torch::where(owner == index, full, full - 5 - index);
}

// Returns this rank's tensor of full shape for `full`: `full` itself, or a term
// of the layout's reductions.
inline at::Tensor term_of(const at::Tensor& full, const Spec& spec) {
  int64_t index = 0;
  int64_t count = 1;
  int64_t averaged = 1;
  bool max = false;
  for (size_t i = 0; i < spec.placements().size(); ++i) {
    const Placement& p = spec.placements()[i];
    if (p.is_partial()) {
      const int64_t n = spec.mesh().shape()[i];
      index = index * n + (*spec.mesh().get_coordinate())[i];
      count *= n;
      averaged *= p.is_partial(ReduceOp::kAvg) ? n : 1;
      max |= p.is_partial(ReduceOp::kMax);
    }
  }
  return max ? below_maximum(full, spec, index, count)
             : summand(full, spec, index, count, averaged);
}

// Reduces `local` over the Partial mesh dims of its layout.
inline at::Tensor reduced(at::Tensor local, const Spec& spec) {
  for (size_t i = 0; i < spec.placements().size(); ++i) {
    const Placement& p = spec.placements()[i];
    if (p.is_partial()) {
      local = get_group(spec.mesh(), static_cast<int64_t>(i))
                  .all_reduce(local, p.reduce_op());
    }
  }
  return local;
}

inline void
expect_right(const SpecPtr& from, const SpecPtr& to, int64_t seed = 0) {
  const at::Tensor full = some_integers(*from, seed);
  const at::Tensor local =
      cut_directly(term_of(full, *from), *from).contiguous();
  const at::Tensor kept = local.clone();
  const at::Tensor result = redistribute_local(local, from, to);
  // The values are exact, except for thirds in averages.
  EXPECT_TRUE(torch::allclose(
      reduced(result.contiguous(), *to), cut_directly(full, *to), 0, 1e-9))
      << to_string(*from) << " to " << to_string(to->placements()) << "\n"
      << to_string(*plan(from, to), from->mesh());
  EXPECT_EQ(result.sizes(), at::IntArrayRef(to->local_sizes()));
  EXPECT_TRUE(torch::equal(local, kept)) << "the input changed";
}

} // namespace dtensor::testing
