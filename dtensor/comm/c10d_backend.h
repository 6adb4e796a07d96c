// SPDX-License-Identifier: BSD-3-Clause
// A c10d::Backend over a Group: runs code written for c10d's process groups in
// any World.
//
//   auto backend = c10d_backend(new_group({0, 1}, "tp"));
//   backend->allreduce(tensors)->wait();
//
// Include <torch/csrc/distributed/c10d/Backend.hpp> to use the result.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <dtensor/api.h>
#include <dtensor/comm/group.h>

namespace c10d {
class Backend;
}

namespace dtensor {

/// Makes a backend that runs the collectives of `group`. Collectives have
/// completed on return, so waiting on their Work returns at once. Shapes may
/// differ between ranks where c10d allows it. allreduce() reduces several
/// tensors of one dtype as one buffer.
/// The collectives throw ValueError if a list's length does not fit the group,
/// TypeError for several dtypes in allreduce(), and NotImplementedError for
/// PREMUL_SUM. Operations of c10d::Backend that a Group lacks throw c10d's own
/// error.
/// Python: torch.distributed.ProcessGroup.
DTENSOR_API c10::intrusive_ptr<c10d::Backend> c10d_backend(GroupPtr group);

} // namespace dtensor
