// SPDX-License-Identifier: BSD-3-Clause
// What one rank does wrong, and what must then be said.
#pragma once

#include <dtensor/comm/group.h>
#include <dtensor/layout/mesh.h>

#include <cstdint>
#include <string>

#include "points.h"
#include "training_step.h"

namespace dtensor::faults {

enum class Kind {
  kThrows,
  kReturns,
  kOtherShape,
  kOtherDtype,
  kOtherCollective,
  kOtherRanksTensor,
  kOtherRanksMesh,
  kOtherRanksGroup,
  kOtherRanksModule,
  kEndedTensor,
  kEndedMesh,
  kEndedGroup,
  kEndedModule,
};
constexpr int kKinds = 13;

/// Rank `rank` of `ranks` does `kind` at its point number `point`.
struct Fault {
  int64_t ranks = 2;
  int64_t rank = 0;
  Kind kind = Kind::kThrows;
  int64_t point = 0;

  std::string text() const;
};

/// What a rank leaves where others find it.
struct Objects {
  at::Tensor tensor;
  DeviceMesh mesh;
  std::shared_ptr<Group> group;
  Block model{nullptr};
};

/// Those of a step without a fault.
Points count_points(int64_t ranks);

/// The error of run_ranks with that fault; empty if there was none.
std::string run_with(const Fault& fault, const Objects& ended);

/// Whether the error names the fault. A rank that waited as long as it may is
/// never that.
bool names(const std::string& error, const Fault& fault);
bool waited(const std::string& error);

/// Objects of rank 0 of two that have ended.
Objects of_ended_ranks();

} // namespace dtensor::faults
