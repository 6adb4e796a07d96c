// SPDX-License-Identifier: BSD-3-Clause
// A variant of Spec::make() for placements that are already normalized.
#pragma once

#include <dtensor/layout/spec.h>

namespace dtensor::detail {

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
