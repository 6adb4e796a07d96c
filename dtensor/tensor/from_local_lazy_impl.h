// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/tensor/dtensor.h>

namespace dtensor::detail {

/// A variant of DTensor::from_local that sets the error message of data_ptr()
/// lazily (tensor/wrap.cpp). Not for tensors that a parameter takes over by
/// set_data().
at::Tensor from_local_lazy(
    const at::Tensor& local,
    const DeviceMesh& mesh,
    PlacementsRef placements,
    const FromLocalOptions& options);

/// Records that from_local_lazy() inferred the global shape in `spec` from this
/// rank's local tensor. Ranks compare inferred shapes in the next checked
/// collective.
void note_inferred(const Spec& spec);

} // namespace dtensor::detail
