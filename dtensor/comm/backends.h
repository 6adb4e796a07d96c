// SPDX-License-Identifier: BSD-3-Clause
// What carries tensors in a world of processes, by name.
//
//   "shm"   memory that processes of one host share; tensors of the CPU
//   "gloo"  TCP, in every LibTorch
//   "mpi"   the MPI whose mpirun has started the program, if dtensor was built
//           with it; "openmpi" and "mpich" say which; tensors of the CPU
//   "hierarchical"  shm for groups whose ranks are on one host; shm within a
//           host and gloo between them for those of several hosts with as many
//           ranks each; else gloo; tensors of the CPU
//   "hierarchical-mpi"  the same with MPI in place of gloo
//   "nccl"  CUDA tensors, a GPU for each rank; in a LibTorch for CUDA
//   "fake"  no other rank: results of the right shape, for planning and tests
//   "auto"  of the CPU: as "hierarchical"; of CUDA: nccl where LibTorch has it,
//           else gloo
//
// Or one for each type of device, "cpu:gloo,cuda:nccl": a group then carries
// every tensor over the backend of its device.
//
// A program adds its own, which init_process_group({.backend = "mine"}) takes:
//
//   register_backend("mine", [](GroupMembers members, const MeetingPlace&
//   place) {
//     return std::make_shared<MyBackend>(std::move(members), place.store);
//   });
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

/// Where the members of a group to be find each other.
struct MeetingPlace {
  /// With keys of this group alone. Any of its members may wait for one, but
  /// none for longer than `timeout`.
  c10::intrusive_ptr<c10d::Store> store;
  /// How long a collective may wait for a member.
  std::chrono::milliseconds timeout;
  /// Of each member: names that are equal where processes share memory.
  std::vector<std::string> hosts;

  /// Whether all members share memory.
  bool is_on_one_host() const;
};

/// Makes one member's backend of a group; every member calls it.
using MakeBackend =
    std::function<GroupBackendPtr(GroupMembers, const MeetingPlace&)>;

/// From now on `name` means a backend that `make` makes; all members of a group
/// of at least two call it. Throws ValueError for a name that is taken, empty,
/// or has a comma or colon.
DTENSOR_API void register_backend(const std::string& name, MakeBackend make);

namespace detail {

/// "gloo, mine".
std::string backend_names();
/// Null if there is none of that name.
MakeBackend find_backend(const std::string& name);

} // namespace detail
} // namespace dtensor
