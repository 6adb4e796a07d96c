// SPDX-License-Identifier: BSD-3-Clause
// What a plan does, on one process or as a rank, and what came out.
#pragma once

#include "plan.h"

#include <ATen/core/Tensor.h>
#include <dtensor/layout/mesh.h>

#include <string>
#include <vector>

namespace dtensor::units {

struct Record {
  std::string what;
  at::Tensor value;     // whole
  bool is_rows = false; // one for each row of this rank, or of all of them
};

/// `mesh` is null on one process, which sees the rows of all ranks. Throws if a
/// unit has its parameters after a backward pass, or lives on.
std::vector<Record> run(const Plan& plan, const DeviceMesh* mesh);

/// That of this rank among those that see other rows.
int64_t data_index(const Plan& plan, const DeviceMesh& mesh);

} // namespace dtensor::units
