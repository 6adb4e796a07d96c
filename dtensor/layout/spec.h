// SPDX-License-Identifier: BSD-3-Clause
// Spec: everything about a DTensor except its data: the mesh, one placement per
// mesh dimension, and the global sizes, strides and dtype.
//
// Specs are interned: equal specs of one rank are one object, so caches compare
// pointers (or ids) instead of fields. Specs are reference-counted, so unused
// specs are freed.
//
//   SpecPtr s = Spec::make(mesh, {Shard(0)}, {8, 6}, at::kFloat);
//   s->local_sizes();                       // {4, 6} on a mesh of 2
//   s == s->with_placements({Shard(0)})     // true
//
// Python: torch.distributed.tensor._dtensor_spec.DTensorSpec.
#pragma once

#include <c10/core/ScalarType.h>
#include <dtensor/layout/mesh.h>
#include <dtensor/layout/placement.h>
#include <dtensor/layout/shard_math.h>

#include <iosfwd>
#include <memory>

namespace dtensor {

class Spec;
/// A shared handle to a spec. Equal specs have equal handles.
using SpecPtr = std::shared_ptr<const Spec>;

class DTENSOR_API Spec {
 public:
  /// Returns the spec with these values. Normalizes placements: negative shard
  /// dims are resolved, a StridedShard of split factor 1 becomes a Shard, and
  /// units become the largest that yield the same shards (with_largest_units).
  /// Throws ValueError if the number of placements is not the number of mesh
  /// dimensions, or if one layout has Partials of different ops (sum and avg
  /// may mix). Throws IndexError for a shard dim that the tensor does not have.
  /// `where` is the prefix of error messages.
  static SpecPtr make(
      const DeviceMesh& mesh,
      PlacementsRef placements,
      SizesRef sizes,
      SizesRef strides,
      at::ScalarType dtype,
      const char* where = "Spec");
  /// The overload with row-major strides.
  static SpecPtr make(
      const DeviceMesh& mesh,
      PlacementsRef placements,
      SizesRef sizes,
      at::ScalarType dtype,
      const char* where = "Spec");

  /// Return the spec that differs from this one only in its placements, or only
  /// in its dtype. with_placements() throws the same errors as make().
  SpecPtr with_placements(PlacementsRef placements, const char* where = "Spec")
      const;
  SpecPtr with_dtype(at::ScalarType dtype) const;
  /// Returns the spec of another tensor with the same mesh and dtype.
  SpecPtr
  with_tensor(PlacementsRef placements, SizesRef sizes, SizesRef strides) const;

  /// The values given to make(), in normalized form, and values derived from
  /// the sizes.
  const DeviceMesh& mesh() const {
    return mesh_;
  }
  PlacementsRef placements() const {
    return placements_;
  }
  SizesRef sizes() const {
    return sizes_;
  }
  SizesRef strides() const {
    return strides_;
  }
  at::ScalarType dtype() const {
    return dtype_;
  }
  int64_t dim() const {
    return static_cast<int64_t>(sizes_.size());
  }
  int64_t numel() const {
    return numel_;
  }

  /// Returns an id that, unlike the address, is never reused for another spec.
  uint64_t id() const {
    return id_;
  }

  /// Returns the shape of this rank's local tensor ({0} on a rank outside the
  /// mesh).
  SizesRef local_sizes() const {
    return local_sizes_;
  }

  /// True if every placement is Replicate.
  bool is_replicated() const {
    return is_replicated_;
  }
  /// True if some placement is Partial.
  bool has_partial() const {
    return has_partial_;
  }
  /// True if some mesh dimension shards tensor dimension `dim`.
  bool is_sharded(int64_t dim) const;

 private:
  friend struct SpecTable;
  Spec() = default;

  DeviceMesh mesh_;
  Placements placements_;
  Sizes sizes_;
  Sizes strides_;
  Sizes local_sizes_;
  at::ScalarType dtype_ = at::kFloat;
  int64_t numel_ = 0;
  uint64_t id_ = 0;
  bool is_replicated_ = true;
  bool has_partial_ = false;
};

/// Returns the global indices along dimension `dim` that this rank holds, in
/// the order of its local tensor; empty on a rank outside the mesh.
DTENSOR_API Intervals local_intervals(const Spec& spec, int64_t dim);

/// Returns placements in the form that Spec::make stores, checked for a tensor
/// of `ndim` dimensions on `mesh`. Throws the errors of Spec::make.
DTENSOR_API Placements normalize_placements(
    const DeviceMesh& mesh,
    PlacementsRef placements,
    int64_t ndim,
    const char* where);

/// Returns `placements`, or Replicate on every dimension of `mesh` if
/// `placements` is empty.
DTENSOR_API Placements
placements_or_replicated(const DeviceMesh& mesh, PlacementsRef placements);

/// Returns the number of specs that exist. Tests use it to check that unused
/// specs are freed.
DTENSOR_API size_t live_specs();

} // namespace dtensor
