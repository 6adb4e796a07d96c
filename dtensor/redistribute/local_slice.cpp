// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/local_slice_impl.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

Intervals sorted(Intervals intervals) {
  std::ranges::sort(intervals, [](const Interval& a, const Interval& b) {
    return a.begin < b.begin;
  });
  return intervals;
}

// Returns the indices of `list` that are also in `others`, in the order of
// `list`.
Intervals intersection(const Intervals& list, const Intervals& others) {
  const Intervals ascending = sorted(others);
  Intervals result;
  for (const Interval& mine : list) {
    for (const Interval& other : ascending) {
      append_joined(result, overlap(mine, other));
    }
  }
  return result;
}

bool is_full(const Interval& interval, const at::Tensor& t, int64_t dim) {
  return interval.begin == 0 && interval.end == t.size(dim);
}

at::Tensor
narrowed(const at::Tensor& t, int64_t dim, const Interval& interval) {
  return is_full(interval, t, dim)
      ? t
      : t.narrow(dim, interval.begin, interval.size());
}

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

// Selects `offsets`, none or several intervals, along dimension `dim` of `t`.
at::Tensor
selected(const at::Tensor& t, int64_t dim, const Intervals& offsets) {
  const auto index = at::tensor(indices_in(offsets), at::kLong).to(t.device());
  const auto dtype = taken_as(t.scalar_type());
  return dtype == t.scalar_type()
      ? t.index_select(dim, index)
      : t.view(dtype).index_select(dim, index).view(t.scalar_type());
}

// Copies `part`, the elements of `slice` from dimension `d` on, into `local`.
void write_dims(
    const at::Tensor& local,
    const LocalSlice& slice,
    const at::Tensor& part,
    size_t d) {
  if (d == slice.offsets.size()) {
    local.copy_(part);
    return;
  }
  const auto dim = static_cast<int64_t>(d);
  int64_t taken = 0;
  for (const Interval& to : slice.offsets[d]) {
    write_dims(
        narrowed(local, dim, to),
        slice,
        narrowed(part, dim, {taken, taken + to.size()}),
        d + 1);
    taken += to.size();
  }
}

} // namespace

Intervals offsets_in(const Intervals& held, const Intervals& wanted) {
  struct Piece {
    Interval global;
    int64_t offset;
  };
  c10::SmallVector<Piece, 4> pieces;
  int64_t offset = 0;
  for (const Interval& interval : held) {
    pieces.push_back({interval, offset});
    offset += interval.size();
  }
  std::ranges::sort(pieces, [](const Piece& a, const Piece& b) {
    return a.global.begin < b.global.begin;
  });
  Intervals result;
  for (const Interval& next : wanted) {
    for (const auto& [global, first] : pieces) {
      append_joined(
          result, shifted(overlap(global, next), first - global.begin));
    }
  }
  return result;
}

LocalSlice slice_of(const IndexBox& held, const IndexBox& wanted) {
  LocalSlice slice;
  for (size_t d = 0; d < held.size(); ++d) {
    slice.offsets.push_back(
        offsets_in(held[d], intersection(wanted[d], held[d])));
    slice.sizes.push_back(total_size(slice.offsets[d]));
  }
  return slice;
}

at::Tensor read_slice(at::Tensor local, const LocalSlice& slice) {
  if (numel(slice.sizes) == 0) {
    return at::empty(slice.sizes, local.options());
  }
  for (size_t d = 0; d < slice.offsets.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    const Intervals& offsets = slice.offsets[d];
    local = offsets.size() == 1 ? narrowed(local, dim, offsets[0])
                                : selected(local, dim, offsets);
  }
  return local;
}

void write_slice(
    const at::Tensor& local,
    const LocalSlice& slice,
    const at::Tensor& part) {
  if (numel(slice.sizes) > 0) {
    write_dims(local, slice, part, 0);
  }
}

} // namespace dtensor::detail
