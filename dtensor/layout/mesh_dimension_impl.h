// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/layout/mesh.h>

#include <string>

namespace dtensor::detail {

/// Returns the name of dimension `dim`, which counts from the front; the number
/// if the dimensions are unnamed.
std::string dim_name(const DeviceMesh& mesh, size_t dim);

/// Returns the slice of `mesh` along dimension `dim`, which counts from the
/// front, that contains this rank. Equals mesh[name] if the dimensions have
/// names.
DeviceMesh along_dimension(const DeviceMesh& mesh, int64_t dim);

} // namespace dtensor::detail
