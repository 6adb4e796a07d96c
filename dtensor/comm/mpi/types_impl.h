// SPDX-License-Identifier: BSD-3-Clause
// Which reductions MPI computes as tensors do, and what it calls them.
#pragma once

#include <c10/core/ScalarType.h>
#include <dtensor/layout/placement.h>
#include <mpi.h>

#include <optional>

namespace dtensor::detail {

struct MpiReduction {
  MPI_Datatype type;
  MPI_Op op; // a sum for an average
};

/// None where MPI lacks the type, as with half precision, or means something
/// else: its minimum and maximum lose NaN.
std::optional<MpiReduction> mpi_reduction(at::ScalarType dtype, ReduceOp op);

} // namespace dtensor::detail
