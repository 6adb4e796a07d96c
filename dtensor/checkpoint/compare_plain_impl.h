// SPDX-License-Identifier: BSD-3-Clause
// Comparison of what every rank has whole: plain tensors, and the values of
// `extra`. A checkpoint holds them once, so ranks must not differ.
#pragma once

#include <dtensor/checkpoint/saved_tensors_impl.h>

#include <string>
#include <vector>

namespace dtensor::detail {

/// A digest of each plain tensor and of each value of `extra` on this rank, in
/// the order of comparable_names(). Reads all of their bytes.
std::vector<std::string> digests_of(
    const std::vector<SavedTensor>& tensors,
    const CheckpointExtra& extra);

/// Names of what digests_of() compares: those of tensors, and "extra.NAME".
std::vector<std::string> comparable_names(
    const std::vector<SavedTensor>& tensors,
    const CheckpointExtra& extra);

/// Names whose digests are not the same on all ranks. `digests` has those of
/// each rank. Throws ValueError on all ranks if there are any, unless `allows`.
std::vector<std::string> names_that_differ(
    const std::vector<std::string>& names,
    const std::vector<std::vector<std::string>>& digests,
    bool allows);

} // namespace dtensor::detail
