// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/layout/spec.h>

#include <dtensor/error.h>
#include <dtensor/layout/intern_impl.h>
#include <dtensor/layout/spec_impl.h>
#include <dtensor/layout/text.h>
#include <dtensor/shortened_impl.h>

#include <algorithm>
#include <atomic>
#include <vector>

namespace dtensor {
namespace {

// The values that identify a spec, by reference, so that a lookup copies
// nothing.
struct SpecKey {
  const DeviceMesh& mesh;
  PlacementsRef placements;
  SizesRef sizes;
  SizesRef strides;
  at::ScalarType dtype;
};

size_t hash_of(const SpecKey& key) {
  size_t hash = reinterpret_cast<size_t>(key.mesh.identity());
  hash = detail::hash_combine(hash, static_cast<size_t>(key.dtype));
  for (const Placement& placement : key.placements) {
    hash = detail::hash_combine(hash, placement.hash());
  }
  return detail::hash_each(detail::hash_each(hash, key.sizes), key.strides);
}

bool matches(const Spec& spec, const SpecKey& key) {
  return spec.mesh().identity() == key.mesh.identity() &&
      spec.dtype() == key.dtype && spec.sizes() == key.sizes &&
      spec.strides() == key.strides && spec.placements() == key.placements;
}

bool is_sum_or_avg(const Placement& placement) {
  return placement.is_partial(ReduceOp::kSum) ||
      placement.is_partial(ReduceOp::kAvg);
}

void check_partials_agree(PlacementsRef placements, const char* where) {
  Placements partials;
  bool agree = true;
  for (const Placement& placement : placements) {
    if (placement.is_partial()) {
      partials.push_back(placement);
      agree = agree &&
          (placement == partials[0] ||
           (is_sum_or_avg(placement) && is_sum_or_avg(partials[0])));
    }
  }
  DTENSOR_CHECK_VALUE(
      agree,
      "[{}] a layout cannot mix Partial reductions: {}. Use one reduction, or "
      "Replicate, on all mesh dimensions.",
      where,
      detail::shortened(to_string(PlacementsRef(partials))));
}

Placement normalize(
    const DeviceMesh& mesh,
    const Placement& placement,
    size_t mesh_dim,
    int64_t ndim,
    const char* where) {
  if (!placement.is_sharded()) {
    return placement;
  }
  DTENSOR_CHECK_INDEX(
      -ndim <= placement.dim() && placement.dim() < ndim,
      "[{}] {} on mesh dim {} shards a dimension that the tensor does not "
      "have: its number of dimensions is {}. Use {}.",
      where,
      to_string(placement),
      detail::shortened(mesh.dim_label(static_cast<int64_t>(mesh_dim))),
      ndim,
      ndim == 0
          ? std::string("R")
          : detail::format_text("a dimension from {} to {}", -ndim, ndim - 1));
  const int64_t dim = placement.dim() + (placement.dim() < 0 ? ndim : 0);
  // A strided shard with one block is a plain shard.
  return placement.split_factor() == 1 ? Shard(dim).with_unit(placement.unit())
                                       : placement.with_dim(dim);
}

bool has_units(PlacementsRef placements) {
  return std::ranges::any_of(
      placements, [](const auto& p) { return p.unit() != 1; });
}

// Returns the spec of a hash that this thread looked up last, found without a
// lock. The cache keeps these specs alive. Otherwise an operator whose result
// is dropped before the next call would get a spec with a new id each time, and
// miss every cache keyed by ids.
SpecPtr& recent_spec(size_t hash) {
  constexpr size_t kCount = 512;
  thread_local std::vector<SpecPtr> specs(kCount);
  return specs[hash % kCount];
}

} // namespace

// The table of all specs. It is never destroyed, because static objects may
// hold specs.
struct SpecTable {
  static detail::InternTable<Spec>& instance() {
    static auto* table = new detail::InternTable<Spec>;
    return *table;
  }

  static SpecPtr get(const SpecKey& key) {
    const size_t hash = hash_of(key);
    SpecPtr& recent = recent_spec(hash);
    if (recent == nullptr || !matches(*recent, key)) {
      recent = instance().get(
          hash,
          [&](const Spec& spec) { return matches(spec, key); },
          [&] { return create(key); });
    }
    return recent;
  }

  static std::unique_ptr<Spec> create(const SpecKey& key) {
    static std::atomic<uint64_t> next_id{1};
    std::unique_ptr<Spec> spec(new Spec);
    spec->mesh_ = key.mesh;
    spec->placements_.append(key.placements.begin(), key.placements.end());
    spec->sizes_.append(key.sizes.begin(), key.sizes.end());
    spec->strides_.append(key.strides.begin(), key.strides.end());
    spec->dtype_ = key.dtype;
    spec->numel_ = numel(key.sizes);
    spec->id_ = next_id.fetch_add(1, std::memory_order_relaxed);
    const auto& coordinate = key.mesh.get_coordinate();
    spec->local_sizes_ = coordinate
        ? dtensor::local_sizes(
              key.sizes, key.mesh.shape(), key.placements, *coordinate)
        : Sizes{0};
    for (const Placement& placement : key.placements) {
      spec->is_replicated_ &= placement.is_replicate();
      spec->has_partial_ |= placement.is_partial();
    }
    return spec;
  }
};

Placements normalize_placements(
    const DeviceMesh& mesh,
    PlacementsRef placements,
    int64_t ndim,
    const char* where) {
  DTENSOR_CHECK_VALUE(
      mesh.defined(),
      "[{}] the mesh is undefined: it was default-constructed. Make one with "
      "init_device_mesh.",
      where);
  DTENSOR_CHECK_VALUE(
      placements.size() == static_cast<size_t>(mesh.ndim()),
      "[{}] {} for a mesh of {}: [{}] on {}. Pass one placement per mesh "
      "dimension.",
      where,
      detail::pluralize(placements.size(), "placement"),
      detail::pluralize(mesh.ndim(), "dimension"),
      detail::shortened(to_string(placements)),
      detail::shortened(to_string(mesh)));
  check_partials_agree(placements, where);
  Placements normalized;
  for (size_t i = 0; i < placements.size(); ++i) {
    normalized.push_back(normalize(mesh, placements[i], i, ndim, where));
  }
  return normalized;
}

Placements placements_or_replicated(
    const DeviceMesh& mesh,
    PlacementsRef placements) {
  return placements.empty() ? detail::replicated_placements(mesh)
                            : Placements(placements);
}

SpecPtr Spec::make(
    const DeviceMesh& mesh,
    PlacementsRef placements,
    SizesRef sizes,
    SizesRef strides,
    at::ScalarType dtype,
    const char* where) {
  return detail::make_normalized(
      mesh,
      normalize_placements(
          mesh, placements, static_cast<int64_t>(sizes.size()), where),
      sizes,
      strides,
      dtype,
      where);
}

SpecPtr detail::make_normalized(
    const DeviceMesh& mesh,
    PlacementsRef normalized,
    SizesRef sizes,
    SizesRef strides,
    at::ScalarType dtype,
    const char* where) {
  DTENSOR_CHECK_VALUE(
      std::ranges::all_of(sizes, [](int64_t size) { return size >= 0; }),
      "[{}] a size is negative: {}. Pass the global sizes of the tensor.",
      where,
      sizes);
  DTENSOR_CHECK_VALUE(
      strides.size() == sizes.size(),
      "[{}] {} for {}: {} for {}. Pass one stride per dimension.",
      where,
      detail::pluralize(strides.size(), "stride"),
      detail::pluralize(sizes.size(), "size"),
      strides,
      sizes);
  if (has_units(normalized)) {
    const auto stored =
        with_largest_units(sizes, mesh.shape(), Placements(normalized));
    return SpecTable::get({mesh, stored, sizes, strides, dtype});
  }
  return SpecTable::get({mesh, normalized, sizes, strides, dtype});
}

SpecPtr Spec::make(
    const DeviceMesh& mesh,
    PlacementsRef placements,
    SizesRef sizes,
    at::ScalarType dtype,
    const char* where) {
  return make(
      mesh,
      placements,
      sizes,
      dtensor::contiguous_strides(sizes),
      dtype,
      where);
}

SpecPtr Spec::with_placements(PlacementsRef placements, const char* where)
    const {
  return make(mesh_, placements, sizes_, strides_, dtype_, where);
}

SpecPtr Spec::with_dtype(at::ScalarType dtype) const {
  return SpecTable::get({mesh_, placements_, sizes_, strides_, dtype});
}

SpecPtr Spec::with_tensor(
    PlacementsRef placements,
    SizesRef sizes,
    SizesRef strides) const {
  return make(mesh_, placements, sizes, strides, dtype_);
}

bool Spec::is_sharded(int64_t dim) const {
  return std::ranges::any_of(
      placements_, [&](const Placement& p) { return p.is_sharded(dim); });
}

Intervals local_intervals(const Spec& spec, int64_t dim) {
  const auto& coordinate = spec.mesh().get_coordinate();
  return coordinate ? local_intervals(
                          spec.sizes()[static_cast<size_t>(dim)],
                          dim,
                          spec.mesh().shape(),
                          spec.placements(),
                          *coordinate)
                    : Intervals();
}

size_t live_specs() {
  return SpecTable::instance().size();
}

} // namespace dtensor
