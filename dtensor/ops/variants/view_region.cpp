// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/variants/write_through_impl.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// Returns the dimension of the base along which `stride` steps; -1 if there is
// no such dimension.
int64_t stepped_dim(
    const std::vector<int64_t>& dims,
    const Spec& base,
    int64_t stride) {
  const auto found = std::ranges::find_if(dims, [&](int64_t dim) {
    return base.strides()[static_cast<size_t>(dim)] <= stride;
  });
  return stride > 0 && found != dims.end() &&
          stride % base.strides()[static_cast<size_t>(*found)] == 0
      ? *found
      : -1;
}

// Finds the first index along each dimension; false if `offset` is not that of
// an element of the base.
bool find_starts(
    const std::vector<int64_t>& dims,
    const Spec& base,
    int64_t offset,
    ViewRegion& region) {
  for (const int64_t dim : dims) {
    const auto d = static_cast<size_t>(dim);
    region[d].start = offset / base.strides()[d];
    offset %= base.strides()[d];
    if (region[d].start >= base.sizes()[d]) {
      return false;
    }
  }
  return offset == 0;
}

} // namespace

std::vector<int64_t> from_outermost(const Spec& spec) {
  std::vector<int64_t> dims;
  for (size_t d = 0; d < spec.sizes().size(); ++d) {
    if (spec.sizes()[d] > 1) {
      dims.push_back(static_cast<int64_t>(d));
    }
  }
  std::ranges::stable_sort(dims, [&](int64_t a, int64_t b) {
    return spec.strides()[static_cast<size_t>(a)] >
        spec.strides()[static_cast<size_t>(b)];
  });
  return dims;
}

std::optional<ViewRegion> region_of(
    const at::Tensor& view,
    const PlacedTensor& base) {
  const auto& spec = *base.spec;
  const auto dims = from_outermost(spec);
  ViewRegion region(spec.sizes().size());
  for (size_t d = 0; d < region.size(); ++d) {
    region[d].base_dim = static_cast<int64_t>(d);
  }
  const auto offset = view.storage_offset() - base.offset;
  if (offset < 0 || !find_starts(dims, spec, offset, region)) {
    return std::nullopt;
  }
  for (int64_t v = 0; v < view.dim(); ++v) {
    if (view.size(v) == 1) {
      continue;
    }
    const auto dim = stepped_dim(dims, spec, view.stride(v));
    if (dim < 0 || region[static_cast<size_t>(dim)].view_dim >= 0) {
      return std::nullopt;
    }
    auto& r = region[static_cast<size_t>(dim)];
    r.view_dim = v;
    r.count = view.size(v);
    r.step = view.stride(v) / spec.strides()[static_cast<size_t>(dim)];
    if (r.start + (r.count - 1) * r.step >=
        spec.sizes()[static_cast<size_t>(dim)]) {
      return std::nullopt;
    }
  }
  for (auto& r : region) {
    r.is_all = r.start == 0 && r.step == 1 &&
        r.count == spec.sizes()[static_cast<size_t>(r.base_dim)];
  }
  return region;
}

} // namespace dtensor::detail
