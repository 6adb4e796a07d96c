// SPDX-License-Identifier: BSD-3-Clause
// Comparison of values that every rank holds in full: plain tensors and the
// values of `extra`. A checkpoint stores them once, so they must be equal on
// all ranks.
#pragma once

#include <dtensor/checkpoint/saved_tensors_impl.h>

#include <string>
#include <vector>

namespace dtensor::detail {

/// Returns a digest of each plain tensor and each value of `extra` on this
/// rank, in the order of comparable_names(). Reads all of their bytes.
std::vector<std::string> digests_of(
    const std::vector<SavedTensor>& tensors,
    const CheckpointExtra& extra);

/// Returns the names of the values that digests_of() covers: names of tensors,
/// and "extra.NAME".
std::vector<std::string> comparable_names(
    const std::vector<SavedTensor>& tensors,
    const CheckpointExtra& extra);

/// Returns the names with digests that differ between ranks. `digests` contains
/// the digests of each rank. Throws ValueError on all ranks if any differ,
/// unless `allows`.
std::vector<std::string> names_that_differ(
    const std::vector<std::string>& names,
    const std::vector<std::vector<std::string>>& digests,
    bool allows);

} // namespace dtensor::detail
