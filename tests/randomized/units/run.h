// SPDX-License-Identifier: BSD-3-Clause
// Execution of a plan, on one process or as a rank, and its results.
#pragma once

#include "plan.h"

#include <ATen/core/Tensor.h>
#include <dtensor/layout/mesh.h>

#include <string>
#include <vector>

namespace dtensor::units {

struct Record {
  std::string what;
  at::Tensor value;     // full tensor
  bool is_rows = false; // one entry per row: this rank's rows, or all
};

/// Runs a plan. `mesh` is null on one process, which uses the rows of all
/// ranks. Throws if a unit is still unsharded after a backward pass, or if a
/// unit is not destroyed.
std::vector<Record> run(const Plan& plan, const DeviceMesh* mesh);

/// Returns the index of this rank among the ranks with different rows.
int64_t data_index(const Plan& plan, const DeviceMesh& mesh);

} // namespace dtensor::units
