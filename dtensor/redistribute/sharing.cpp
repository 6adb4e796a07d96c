// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/steps_impl.h>

#include <ATen/ops/tensor.h>
#include <dtensor/layout/intervals_impl.h>

#include <algorithm>
#include <numeric>

namespace dtensor::detail {
namespace {

// Returns the signed dtype of equal size: LibTorch's index_select does not
// support unsigned dtypes wider than a byte.
at::ScalarType taken_as(at::ScalarType dtype) {
  switch (dtype) {
    case at::kUInt16:
      return at::kShort;
    case at::kUInt32:
      return at::kInt;
    case at::kUInt64:
      return at::kLong;
    default:
      return dtype;
  }
}

} // namespace

at::Tensor
select_positions(const at::Tensor& t, int64_t dim, const Positions& positions) {
  const auto index = at::tensor(positions, at::kLong).to(t.device());
  const auto dtype = taken_as(t.scalar_type());
  return dtype == t.scalar_type()
      ? t.index_select(dim, index)
      : t.view(dtype).index_select(dim, index).view(t.scalar_type());
}

at::Tensor
select_positions(const at::Tensor& t, int64_t dim, const Intervals& intervals) {
  if (intervals.empty()) {
    return t.narrow(dim, 0, 0);
  }
  if (intervals.size() == 1) {
    return t.narrow(dim, intervals[0].begin, intervals[0].size());
  }
  return select_positions(t, dim, indices_in(intervals));
}

Positions sorted_order(const Positions& values) {
  Positions order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](int64_t a, int64_t b) {
    return values[static_cast<size_t>(a)] < values[static_cast<size_t>(b)];
  });
  return order;
}

Intervals DimSharding::shard(int64_t rank) const {
  return shard_intervals({{0, size_}}, sharding_, ranks_, rank);
}

Positions DimSharding::positions(int64_t rank) const {
  Positions positions;
  append_indices(positions, shard(rank));
  return positions;
}

Positions DimSharding::all_positions() const {
  Positions positions;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    append_indices(positions, shard(rank));
  }
  return positions;
}

Sizes DimSharding::sizes() const {
  Sizes sizes;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    sizes.push_back(total_size(shard(rank)));
  }
  return sizes;
}

Positions DimSharding::owners() const {
  Positions owners(static_cast<size_t>(size_));
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    for (const int64_t at : positions(rank)) {
      owners[static_cast<size_t>(at)] = rank;
    }
  }
  return owners;
}

at::Tensor DimSharding::put_back(const at::Tensor& parts) const {
  return in_order()
      ? parts
      : select_positions(parts, dim(), sorted_order(all_positions()));
}

} // namespace dtensor::detail
