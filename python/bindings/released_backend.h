// SPDX-License-Identifier: BSD-3-Clause
// A backend that never holds the GIL while it waits.
#pragma once

#include <dtensor/comm/group_backend.h>

namespace dtensor::python {

/// Wraps `backend`. Some functions of PyTorch call operators with the GIL, such
/// as x[i]; the collectives of these operators release the GIL. A peer, or the
/// transport, may depend on another thread of this process that needs the GIL.
GroupBackendPtr releasing_gil(GroupBackendPtr backend);

} // namespace dtensor::python
