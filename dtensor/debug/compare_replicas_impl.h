// SPDX-License-Identifier: BSD-3-Clause
// compare_replicas: whether the ranks along a mesh dimension have the same
// tensors. They exchange 8 bytes where all is well, and details where not.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/mesh.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// What a tensor is to the program; decides its name and the advice in errors.
enum class ReplicaRole : uint8_t {
  kInput,
  kOutput,
  kLocal,
  kGradient,
  kNorm,
  kDraw,
  kParameter,
  kParameterGradient,
  kLoss,
  kRandomState,
  kNamed,
};

/// A tensor of this rank that its peers are to have, too.
struct Replica {
  ReplicaRole role;
  /// Full name of the module or parameter, or the program's own name.
  std::string_view name;
  at::Tensor tensor; // plain; undefined for a gradient that is not there
  uint64_t digest;   // digest_of(tensor)
};

struct ReplicaRanks {
  DeviceMesh mesh;
  int64_t dim = 0;
};

/// Throws RuntimeError on all of these ranks unless they have the same
/// replicas, in the same order. The error names the first one that differs.
/// Elements that differ by no more than `tolerance` times the largest
/// magnitude are equal. All of these ranks call it.
void compare_replicas(
    const ReplicaRanks& ranks,
    const std::vector<Replica>& replicas,
    double tolerance);

} // namespace dtensor::detail
