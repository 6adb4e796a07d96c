// SPDX-License-Identifier: BSD-3-Clause
// Spec::make() for those who have normalized the placements already.
#pragma once

#include <dtensor/layout/spec.h>

namespace dtensor::detail {

/// The spec of `normalized`, which normalize_placements() made for this mesh
/// and as many dimensions; the other errors of Spec::make.
DTENSOR_API SpecPtr make_normalized(
    const DeviceMesh& mesh,
    PlacementsRef normalized,
    SizesRef sizes,
    SizesRef strides,
    at::ScalarType dtype,
    const char* where);

} // namespace dtensor::detail
