// SPDX-License-Identifier: BSD-3-Clause
// compare_replicas: checks that the ranks along a mesh dimension have the same
// tensors. Ranks exchange 8 bytes if all tensors agree, and details otherwise.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/layout/mesh.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

/// The role of a tensor in the program. Determines its name and the remedy in
/// errors.
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

/// A tensor of this rank that should be equal on the other ranks.
struct Replica {
  ReplicaRole role;
  /// Full name of the module or parameter, or a name chosen by the program.
  std::string_view name;
  at::Tensor tensor; // plain; undefined for a missing gradient
  uint64_t digest;   // digest_of(tensor)
};

struct ReplicaRanks {
  DeviceMesh mesh;
  int64_t dim = 0;
};

/// Throws RuntimeError on all these ranks unless they have the same replicas in
/// the same order. The error names the first difference. Elements are equal if
/// they differ by at most `tolerance` times the largest magnitude. All these
/// ranks must call it.
void compare_replicas(
    const ReplicaRanks& ranks,
    const std::vector<Replica>& replicas,
    double tolerance);

// Names of replicas in errors, and remedies for differences.

/// "the input of module \"w1\"".
std::string title_of(ReplicaRole role, std::string_view name);

/// Returns the remedy as a sentence.
const char* advice_for(ReplicaRole role);

} // namespace dtensor::detail
