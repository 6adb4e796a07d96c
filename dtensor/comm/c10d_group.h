// SPDX-License-Identifier: BSD-3-Clause
// A GroupBackend over a c10d::Backend: collectives by Gloo, NCCL, UCC, or by
// what a site has made itself.
//
//   GroupBackendPtr make_backend(GroupMembers members) override {
//     return c10d_group(my_c10d_backend(members.ranks), std::move(members));
//   }
//
// The other way round: comm/c10d_backend.h.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <dtensor/api.h>
#include <dtensor/comm/group_backend.h>

namespace c10d {
class Backend;
}

namespace dtensor {

/// A group whose collectives are those of `backend`, which has as many ranks
/// as there are `members`, in their order. `device` is where that backend
/// communicates from: unless that is the CPU, a tensor elsewhere is ValueError.
///
/// It carries every dtype: data travel as bytes, and a reduction that the
/// backend does not know gathers the terms and reduces them here. Asynchronous
/// collectives overlap as far as the backend's own do. Waiting is c10d's: the
/// current stream waits for the result, and the host for nothing where the
/// backend has streams, as NCCL has.
/// Throws ValueError if ranks and sizes differ. What c10d throws comes as
/// RuntimeError with the collective, its number, the group and the rank.
DTENSOR_API GroupBackendPtr c10d_group(
    c10::intrusive_ptr<c10d::Backend> backend,
    GroupMembers members,
    c10::Device device = c10::Device(c10::kCPU));

} // namespace dtensor
