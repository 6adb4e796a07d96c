// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/tensor/dtensor.h>

namespace dtensor::detail {

/// DTensor::from_local for a tensor that no parameter takes over by set_data():
/// it need not know the message of data_ptr() beforehand (tensor/wrap.cpp).
at::Tensor from_part(
    const at::Tensor& local,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FromLocalOptions& options);

/// What from_part() does where it inferred the global shape, `spec`, from this
/// rank's part alone: the ranks will compare what they inferred.
void note_inferred(const Spec& spec);

} // namespace dtensor::detail
