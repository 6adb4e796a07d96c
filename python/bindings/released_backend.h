// SPDX-License-Identifier: BSD-3-Clause
// A backend that never waits with the GIL.
#pragma once

#include <dtensor/comm/group_backend.h>

namespace dtensor::python {

/// Wraps `backend`. Some functions of PyTorch call operators with the GIL, such
/// as x[i]; the collectives of these operators release it. A peer, or the
/// transport, may depend on another thread of this process that needs it.
GroupBackendPtr releasing_gil(GroupBackendPtr backend);

} // namespace dtensor::python
