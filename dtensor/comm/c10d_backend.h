// SPDX-License-Identifier: BSD-3-Clause
// A c10d::Backend over a Group, so that code written for c10d's process groups
// runs in any World.
//
//   auto backend = c10d_backend(new_group({0, 1}, "tp"));
//   backend->allreduce(tensors)->wait();
//
// Include <torch/csrc/distributed/c10d/Backend.hpp> to use what it returns.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <dtensor/api.h>
#include <dtensor/comm/group.h>

namespace c10d {
class Backend;
}

namespace dtensor {

/// A backend whose collectives are those of `group`. They have completed when
/// they return, so the Work that they give never waits. Tensors that differ in
/// shape between ranks are allowed where c10d allows them.
/// Throws ValueError on lists whose length does not fit the group, and
/// NotImplementedError on PREMUL_SUM; what c10d's Backend has beyond the
/// collectives of Group throws c10d's own error.
/// Python: torch.distributed.ProcessGroup.
DTENSOR_API c10::intrusive_ptr<c10d::Backend> c10d_backend(GroupPtr group);

} // namespace dtensor
