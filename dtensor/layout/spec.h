// SPDX-License-Identifier: BSD-3-Clause
// Spec: everything there is to know of a DTensor except its data: the mesh,
// one placement per mesh dimension, and the global sizes, strides and dtype.
//
// Specs are interned: equal specs of one rank are one object, so caches
// compare pointers (or ids) and never look inside. They are counted, so specs
// of shapes that are no longer used go away.
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
/// How specs are held and compared.
using SpecPtr = std::shared_ptr<const Spec>;

class DTENSOR_API Spec {
 public:
  /// The spec of these parts. Negative shard dims are resolved, a StridedShard
  /// of split factor 1 becomes the Shard that it is, and a unit the largest
  /// that makes the same parts (with_largest_units). Throws
  /// ValueError: number of placements unlike the mesh's dimensions, Partial of
  /// different ops in one layout (sum and avg may mix); IndexError: a shard
  /// dim that the tensor does not have. `where` begins the message.
  static SpecPtr make(
      const DeviceMesh& mesh,
      PlacementsRef placements,
      SizesRef sizes,
      SizesRef strides,
      at::ScalarType dtype,
      const char* where = "Spec");
  /// With row-major strides.
  static SpecPtr make(
      const DeviceMesh& mesh,
      PlacementsRef placements,
      SizesRef sizes,
      at::ScalarType dtype,
      const char* where = "Spec");

  /// The same tensor in another layout, and of another dtype. The first throws
  /// as make().
  SpecPtr with_placements(PlacementsRef placements, const char* where = "Spec")
      const;
  SpecPtr with_dtype(at::ScalarType dtype) const;
  /// Same mesh and dtype, another tensor.
  SpecPtr
  with_tensor(PlacementsRef placements, SizesRef sizes, SizesRef strides) const;

  /// Mesh, placements, global sizes and strides, and dtype: what make() was
  /// given, in the form in which it stores them; and what follows from sizes.
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

  /// Never used again for another spec, unlike the address.
  uint64_t id() const {
    return id_;
  }

  /// Shape of this rank's local tensor ({0} on a rank outside the mesh).
  SizesRef local_sizes() const {
    return local_sizes_;
  }

  /// Whether every placement is Replicate, and whether one is Partial.
  bool is_replicated() const {
    return is_replicated_;
  }
  bool has_partial() const {
    return has_partial_;
  }
  /// Whether some mesh dimension cuts tensor dimension `dim`.
  bool cuts(int64_t dim) const;

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

/// The global indices of dimension `dim` that this rank holds, in the order of
/// its local tensor; none on a rank outside the mesh.
DTENSOR_API Intervals local_intervals(const Spec& spec, int64_t dim);

/// Placements as Spec::make stores them, checked for a tensor of `ndim`
/// dimensions on `mesh`; the errors of Spec::make.
DTENSOR_API Placements normalize_placements(
    const DeviceMesh& mesh,
    PlacementsRef placements,
    int64_t ndim,
    const char* where);

/// `placements`; Replicate on every dimension of `mesh` if there are none.
DTENSOR_API Placements
placements_or_whole(const DeviceMesh& mesh, PlacementsRef placements);

/// Number of specs alive, for tests that the table does not grow.
DTENSOR_API size_t live_specs();

} // namespace dtensor
