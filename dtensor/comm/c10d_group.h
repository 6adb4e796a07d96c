// SPDX-License-Identifier: BSD-3-Clause
// A GroupBackend over a c10d::Backend: collectives of Gloo, NCCL, UCC, or of a
// custom c10d backend.
//
//   GroupBackendPtr make_backend(GroupMembers members) override {
//     return c10d_group(my_c10d_backend(members.ranks), std::move(members));
//   }
//
// The reverse adapter: comm/c10d_backend.h.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <dtensor/api.h>
#include <dtensor/comm/group_backend.h>

namespace c10d {
class Backend;
}

namespace dtensor {

/// Makes a group backend that runs on `backend`, which must have the ranks of
/// `members`, in their order. `device` is the device that the backend
/// communicates from. Unless it is the CPU, collectives throw ValueError for a
/// tensor on another device.
///
/// Every dtype is supported: data is sent as bytes, and if `backend` lacks a
/// reduction, the ranks gather all inputs and reduce them locally. Asynchronous
/// collectives overlap as far as those of `backend` do. Waiting follows c10d:
/// with streams, as in NCCL, the current stream waits and the host does not.
///
/// Throws ValueError if `backend` and `members` differ in the number of ranks.
/// Errors of c10d become a RuntimeError that names the collective, its number,
/// the group and the rank.
DTENSOR_API GroupBackendPtr c10d_group(
    c10::intrusive_ptr<c10d::Backend> backend,
    GroupMembers members,
    c10::Device device = c10::Device(c10::kCPU));

} // namespace dtensor
