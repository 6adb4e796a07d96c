// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/layout/mesh.h>

#include <string>

namespace dtensor::detail {

/// Returns the name of dimension `dim`, which counts from the front; the number
/// if the dimensions are unnamed.
std::string dim_name(const DeviceMesh& mesh, size_t dim);

} // namespace dtensor::detail
