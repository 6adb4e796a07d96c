// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/redistribute/local_slice_impl.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

namespace dtensor::detail {
namespace {

// Intervals of a tensor dimension that a local tensor holds, and their offsets
// in it.
class HeldIntervals {
 public:
  explicit HeldIntervals(const Intervals& held) {
    int64_t offset = 0;
    for (const Interval& interval : held) {
      ascending_.push_back({interval, offset});
      offset += interval.size();
    }
    std::ranges::sort(
        ascending_, {}, [](const Held& other) { return other.global.begin; });
  }

  // Appends the offsets of the held indices of `wanted`.
  void append_offsets(Intervals& offsets, const Interval& wanted) const {
    auto held = std::ranges::partition_point(
        ascending_,
        [&](const Held& other) { return other.global.end <= wanted.begin; });
    for (; held != ascending_.end() && held->global.begin < wanted.end;
         ++held) {
      const auto& [global, first] = *held;
      append_joined(
          offsets, shifted(overlap(global, wanted), first - global.begin));
    }
  }

 private:
  struct Held {
    Interval global;
    int64_t offset;
  };
  c10::SmallVector<Held, 4> ascending_;
};

at::Tensor
narrowed(const at::Tensor& t, int64_t dim, const Interval& interval) {
  return interval.size() == t.size(dim)
      ? t
      : t.narrow(dim, interval.begin, interval.size());
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
  const HeldIntervals all(held);
  Intervals result;
  for (const Interval& next : wanted) {
    all.append_offsets(result, next);
  }
  return result;
}

LocalSlice slice_of(const IndexBox& held, const IndexBox& wanted) {
  LocalSlice slice;
  for (size_t d = 0; d < held.size(); ++d) {
    slice.offsets.push_back(offsets_in(held[d], wanted[d]));
    slice.sizes.push_back(total_size(slice.offsets[d]));
  }
  return slice;
}

at::Tensor
select_intervals(const at::Tensor& t, int64_t dim, const Intervals& intervals) {
  if (intervals.empty()) {
    return t.narrow(dim, 0, 0);
  }
  std::vector<at::Tensor> parts;
  for (const Interval& interval : intervals) {
    parts.push_back(narrowed(t, dim, interval));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, dim);
}

at::Tensor read_slice(at::Tensor local, const LocalSlice& slice) {
  if (numel(slice.sizes) == 0) {
    return at::empty(slice.sizes, local.options());
  }
  for (size_t d = 0; d < slice.offsets.size(); ++d) {
    local = select_intervals(local, static_cast<int64_t>(d), slice.offsets[d]);
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
