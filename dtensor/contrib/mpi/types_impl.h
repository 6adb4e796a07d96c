// SPDX-License-Identifier: BSD-3-Clause
// Mapping of reductions to MPI types and operations.
#pragma once

#include <c10/core/ScalarType.h>
#include <dtensor/layout/placement.h>
#include <mpi.h>

#include <optional>

namespace dtensor::mpi {

struct MpiReduction {
  MPI_Datatype type;
  MPI_Op op; // MPI_SUM for an average
};

/// Returns nullopt if MPI lacks the type (half precision) or computes a
/// different result: its minimum and maximum lose NaN.
std::optional<MpiReduction> mpi_reduction(at::ScalarType dtype, ReduceOp op);

} // namespace dtensor::mpi
