// SPDX-License-Identifier: BSD-3-Clause
// Backends of worlds of processes, by name.
//
//   "shm"   memory shared by the processes of one host; CPU tensors
//   "gloo"  TCP, in every LibTorch
//   "mpi"   the MPI whose mpirun started the program, if dtensor was built with
//           MPI; "openmpi" and "mpich" choose one; CPU tensors
//   "hierarchical"  shm for groups on one host. For groups on several hosts:
//           shm within hosts and gloo between them if each host has equally
//           many of the ranks, else gloo alone. CPU tensors
//   "hierarchical-mpi"  like "hierarchical", with MPI in place of gloo
//   "nccl"  CUDA tensors, one GPU per rank; needs a LibTorch with CUDA
//   "fake"  no other ranks exist: results have the right shape but not the
//           values of other ranks; for planning and tests
//   "auto"  CPU tensors: "hierarchical"; CUDA tensors: nccl if LibTorch has it,
//           else gloo
//
// Backends can be combined by device type, "cpu:gloo,cuda:nccl": a group then
// sends every tensor over the backend of the tensor's device.
//
// A program may register a backend of its own, and pass its name to
// init_process_group():
//
//   register_backend(
//       "mine", [](GroupMembers members, const RendezvousInfo& place) {
//         return std::make_shared<MyBackend>(std::move(members), place.store);
//       });
//
// Python: torch.distributed.Backend.register_backend.
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/group_backend.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace dtensor {

/// Rendezvous of the members of a new group.
struct DTENSOR_API RendezvousInfo {
  /// Store whose keys belong to this group alone. A member may wait for keys,
  /// but not longer than `timeout`.
  c10::intrusive_ptr<c10d::Store> store;
  /// Longest time that a collective waits for a member.
  std::chrono::milliseconds timeout;
  /// Host name per member; equal names mean that the processes share memory.
  std::vector<std::string> hosts;

  /// Returns true if all members share memory.
  bool is_on_one_host() const;
};

/// Makes the backend of one member of a group; every member calls it.
using MakeBackend =
    std::function<GroupBackendPtr(GroupMembers, const RendezvousInfo&)>;

/// Registers `make` as the backend `name`. All members of a group of at least
/// two ranks call `make`. Throws ValueError if the name is taken, empty, or
/// contains a comma or colon.
DTENSOR_API void register_backend(const std::string& name, MakeBackend make);

namespace detail {

/// Returns the registered names: "gloo, mine".
std::string backend_names();
/// Returns the function that makes the backend `name`; null if there is none.
MakeBackend find_backend(const std::string& name);

} // namespace detail
} // namespace dtensor
