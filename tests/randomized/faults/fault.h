// SPDX-License-Identifier: BSD-3-Clause
// Fault of one rank, and the check of the resulting error.
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

/// A fault: rank `rank` of `ranks` does `kind` at its point number `point`.
struct Fault {
  int64_t ranks = 2;
  int64_t rank = 0;
  Kind kind = Kind::kThrows;
  int64_t point = 0;

  std::string text() const;
};

/// Objects of a rank that other ranks can reach.
struct Objects {
  at::Tensor tensor;
  DeviceMesh mesh;
  std::shared_ptr<Group> group;
  Block model{nullptr};
};

/// Counts the points of a step without a fault.
Points count_points(int64_t ranks);

/// Returns the error of run_ranks with this fault, or an empty text.
std::string run_with(const Fault& fault, const Objects& ended);

/// Returns true if the error names the fault. An error of a rank that waited
/// until the timeout never does.
bool names(const std::string& error, const Fault& fault);
bool waited(const std::string& error);

/// Returns objects of rank 0 of a world of two ranks that have ended.
Objects of_ended_ranks();

} // namespace dtensor::faults
