// SPDX-License-Identifier: BSD-3-Clause
// Writes to views whose local tensors are copies.
//
// A view along a sharded dimension is redistributed, so its local tensor has
// its own memory. An in-place operator writes to this copy. Then every rank
// copies its elements of the view to its local tensor of the viewed tensor, the
// base.
#include <dtensor/ops/variants/view_result_impl.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/where.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/execute.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace dtensor::detail {
namespace {

// The region of a tensor, the base, that a view covers. The region follows from
// the strides and offsets of the corresponding plain tensors.

// The indices start, start + step, ... of one dimension of the base.
struct RegionDim {
  int64_t base_dim = 0;
  int64_t view_dim = -1; // -1: a single index, without a dimension of the view
  int64_t start = 0;
  int64_t step = 1;
  int64_t count = 1;
  bool is_all = false;
};

// An entry for each dimension of the base, in the order of these dimensions.
using ViewRegion = std::vector<RegionDim>;

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

// Returns the dimensions with more than one element, by descending strides.
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

// Returns the rectangle of the base that `view` covers, in any order of its
// dimensions; nullopt if the view is not a rectangle.
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

// Returns the shards of `dim`, by mesh dimension, as shards of dimension 0.
Placements shardings_of(const Spec& spec, int64_t dim) {
  Placements shardings;
  for (const auto& p : spec.placements()) {
    shardings.push_back(p.is_sharded(dim) ? p.with_dim(0) : Replicate());
  }
  return shardings;
}

// Returns true if ranks hold the same elements of the view and of the base
// along `dim`.
bool is_sharded_alike(
    const RegionDim& dim,
    const Spec& view,
    const Spec& base) {
  return dim.is_all && dim.view_dim >= 0 &&
      shardings_of(view, dim.view_dim) == shardings_of(base, dim.base_dim);
}

// Gathers the dimensions of the view along which a rank's elements differ from
// its elements of the base.
at::Tensor gathered(
    const at::Tensor& local,
    const SpecPtr& view,
    const std::vector<bool>& keeps) {
  Placements wanted;
  for (const auto& p : view->placements()) {
    wanted.push_back(
        p.is_sharded() && !keeps[static_cast<size_t>(p.dim())] ? Replicate()
                                                               : p);
  }
  return redistribute_local(local, view, view->with_placements(wanted));
}

// A range of a local base along one dimension, and the range of the view in it.
struct Stretch {
  int64_t begin; // of the base
  int64_t end;
  int64_t step;
  int64_t view_begin;
  int64_t view_end;
};

std::vector<Stretch>
stretches(const RegionDim& dim, const Spec& base, bool sharded_alike) {
  const auto held = local_intervals(base, dim.base_dim);
  if (sharded_alike) {
    return {{0, total_size(held), 1, 0, total_size(held)}};
  }
  const auto index_from = [&](int64_t at) { // the first index there or later
    const auto k = (at - dim.start + dim.step - 1) / dim.step;
    return std::clamp<int64_t>(at <= dim.start ? 0 : k, 0, dim.count);
  };
  std::vector<Stretch> found;
  int64_t before = 0; // elements held of earlier intervals
  for (const auto& [begin, end] : held) {
    const auto first = index_from(begin);
    const auto last = index_from(end);
    if (first < last) {
      const auto at = before + dim.start + first * dim.step - begin;
      found.push_back(
          {at, at + (last - first - 1) * dim.step + 1, dim.step, first, last});
    }
    before += end - begin;
  }
  return found;
}

void copy_stretches(
    const std::vector<std::vector<Stretch>>& all,
    size_t dim,
    const at::Tensor& from,
    const at::Tensor& to) {
  if (dim == all.size()) {
    to.copy_(from);
    return;
  }
  const auto d = static_cast<int64_t>(dim);
  for (const auto& s : all[dim]) {
    copy_stretches(
        all,
        dim + 1,
        from.slice(d, s.view_begin, s.view_end),
        to.slice(d, s.begin, s.end, s.step));
  }
}

// Returns the view with its dimensions in the order of the base.
at::Tensor in_order_of_base(const at::Tensor& view, const ViewRegion& region) {
  std::vector<int64_t> order;
  std::vector<bool> is_used(static_cast<size_t>(view.dim()), false);
  for (const auto& dim : region) {
    if (dim.view_dim >= 0) {
      order.push_back(dim.view_dim);
      is_used[static_cast<size_t>(dim.view_dim)] = true;
    }
  }
  const auto used = static_cast<int64_t>(order.size());
  for (int64_t d = 0; d < view.dim(); ++d) {
    if (!is_used[static_cast<size_t>(d)]) {
      order.push_back(d);
    }
  }
  auto result = view.permute(order);
  while (result.dim() > used) {
    result = result.select(used, 0);
  }
  for (size_t d = 0; d < region.size(); ++d) {
    if (region[d].view_dim < 0) {
      result = result.unsqueeze(static_cast<int64_t>(d));
    }
  }
  return result;
}

void copy_region(
    const ViewRegion& region,
    const at::Tensor& local_view,
    const SpecPtr& view,
    const PlacedTensor& base) {
  std::vector<bool> keeps(static_cast<size_t>(local_view.dim()), false);
  std::vector<std::vector<Stretch>> all;
  for (const auto& dim : region) {
    const bool alike = is_sharded_alike(dim, *view, *base.spec);
    if (alike) {
      keeps[static_cast<size_t>(dim.view_dim)] = true;
    }
    all.push_back(stretches(dim, *base.spec, alike));
  }
  const auto from = gathered(local_view, view, keeps);
  copy_stretches(all, 0, in_order_of_base(from, region), base.local);
}

// Returns the indices of the view's elements in the local base, by dimension;
// -1 if this rank does not hold the element.
std::vector<at::Tensor> places_in_base(
    const at::Tensor& view,
    int64_t offset,
    const PlacedTensor& base) {
  const auto options =
      at::TensorOptions().dtype(at::kLong).device(base.local.device());
  auto place = at::full_like(
      at::empty({}, options).expand(view.sizes()), offset - base.offset);
  for (int64_t d = 0; d < view.dim(); ++d) {
    std::vector<int64_t> shape(static_cast<size_t>(view.dim()), 1);
    shape[static_cast<size_t>(d)] = view.size(d);
    place = place.add(
        at::arange(view.size(d), options).mul(view.stride(d)).view(shape));
  }
  std::vector<at::Tensor> places;
  for (const int64_t held : base.local.sizes()) { // of one element, or none
    places.push_back(at::full_like(place, held > 0 ? 0 : -1));
  }
  for (const int64_t dim : from_outermost(*base.spec)) {
    const auto d = static_cast<size_t>(dim);
    const auto stride = base.spec->strides()[d];
    const auto index = place.div(stride, "floor");
    place = place.sub(index.mul(stride));
    places[d] = at::full_like(index, -1);
    int64_t before = 0;
    for (const auto& [begin, end] : local_intervals(*base.spec, dim)) {
      places[d] = at::where(
          index.ge(begin).logical_and(index.lt(end)),
          index.sub(begin - before),
          places[d]);
      before += end - begin;
    }
  }
  return places;
}

// Copies a view that is not a rectangle of the base: a diagonal, flattened
// dimensions.
void copy_elements(
    const at::Tensor& full_view,
    const at::Tensor& view,
    const PlacedTensor& base) {
  const auto places = places_in_base(view, view.storage_offset(), base);
  at::Tensor is_held;
  for (const auto& place : places) {
    is_held =
        is_held.defined() ? is_held.logical_and(place.ge(0)) : place.ge(0);
  }
  c10::List<std::optional<at::Tensor>> indices;
  for (const auto& place : places) {
    indices.push_back(place.masked_select(is_held));
  }
  base.local.index_put_(indices, full_view.masked_select(is_held));
}

// Returns true if terms of a partial view are terms of the base, because view
// and base are Partial in the same way.
bool has_terms_of(const Spec& view, const Spec& base) {
  for (size_t m = 0; m < base.placements().size(); ++m) {
    const auto& from = base.placements()[m];
    const auto& to = view.placements()[m];
    if ((from.is_partial() || to.is_partial()) && from != to) {
      return false;
    }
  }
  return true;
}

bool can_write_through(const at::Tensor& view, const CopiedFrom& from) {
  const auto& base = from.base;
  return can_bring_up_to_date(from) &&
      view.scalar_type() == base.spec->dtype() &&
      !may_overlap(view.sizes(), view.strides()) &&
      has_terms_of(*spec_of(view), *base.spec) &&
      has_terms_of(*from.copy.spec, *base.spec);
}

// Returns true if the autograd kernel that called this operator will count the
// write.
bool is_counted_later(const at::Tensor& written) {
  return !written.is_inference() &&
      c10::impl::tls_is_dispatch_key_excluded(
          c10::DispatchKey::ADInplaceOrView);
}

} // namespace

void check_can_write_through(const std::string& name, const at::Tensor& view) {
  const auto* from = copied_from(view);
  if (from != nullptr && !can_write_through(view, *from)) {
    DTENSOR_THROW(
        "[{}] self, {}, is a copied view of {}: the write would not reach that "
        "tensor. Write to that tensor itself, or clone() the view.",
        name,
        *spec_of(view),
        describe_viewed_tensor(from->reason));
  }
}

void note_change_of_shape(const at::Tensor& view) {
  copied_from(view)->note_up_to_date(is_counted_later(view));
}

void write_through(const at::Tensor& view) {
  auto& from = *copied_from(view);
  const auto& spec = spec_of(view);
  if (spec->mesh().contains_this_rank() && view.numel() > 0) {
    const auto& local = meta_of(view).local();
    if (const auto region = region_of(view, from.base)) {
      copy_region(*region, local, spec, from.base);
    } else {
      const std::vector<bool> whole(static_cast<size_t>(view.dim()), false);
      copy_elements(gathered(local, spec, whole), view, from.base);
    }
  }
  from.writes.bump();
  from.note_up_to_date(is_counted_later(view));
}

} // namespace dtensor::detail
