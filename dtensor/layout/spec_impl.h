// SPDX-License-Identifier: BSD-3-Clause
// Specs and placements derived from others.
//
//   without_partial({Shard(0), Partial()})   // S(0) R
#pragma once

#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// Returns Replicate on every dimension of `mesh`.
inline Placements replicated_placements(const DeviceMesh& mesh) {
  return Placements(static_cast<size_t>(mesh.ndim()), Replicate());
}

/// Returns the spec of the same tensor, replicated on every mesh dimension.
inline SpecPtr fully_replicated_spec(const Spec& spec) {
  return spec.with_placements(replicated_placements(spec.mesh()));
}

/// Returns `placements` with every Partial replaced by Replicate.
inline Placements without_partial(PlacementsRef placements) {
  Placements result(placements.begin(), placements.end());
  for (auto& p : result) {
    if (p.is_partial()) {
      p = Replicate();
    }
  }
  return result;
}

/// Returns the spec of `normalized`, a result of normalize_placements() for
/// this mesh and number of dimensions. Throws the remaining errors of
/// Spec::make.
DTENSOR_API SpecPtr make_normalized(
    const DeviceMesh& mesh,
    PlacementsRef normalized,
    SizesRef sizes,
    SizesRef strides,
    at::ScalarType dtype,
    const char* where);

} // namespace dtensor::detail
