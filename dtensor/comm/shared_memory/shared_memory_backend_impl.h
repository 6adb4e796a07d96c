// SPDX-License-Identifier: BSD-3-Clause
// The backend of a group of processes of one host and one user.
//
//   GroupBackendPtr backend = shared_memory_backend(
//       members, c10::make_intrusive<c10d::PrefixStore>("tp", store),
//       {.timeout = std::chrono::minutes(30)});
//
// Tensors pass through memory that all members map and that needs no cleanup.
// The backend carries CPU tensors of any dtype and size. In each collective it
// compares the members' calls; on a mismatch, all members throw ValueError and
// may continue. Any other failure (a member has ended, is missing, or failed)
// breaks the group: every member throws RuntimeError, in this call and in all
// later ones.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <dtensor/comm/group_backend.h>

#include <chrono>

namespace c10d {
class Store;
}

namespace dtensor::detail {

/// Maximum number of members: a table of two numbers for each member must fit
/// into half a notice.
constexpr int64_t kMostMembers = 128;

struct SharedMemoryOptions {
  /// Timeout of one collective, and of the group's setup.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Bytes of each of a member's two blocks. Large enough to make
  /// synchronization cheap in comparison, and small enough to stay in the
  /// caches. Must be a multiple of 4096 and equal on all members.
  int64_t block_bytes = 256 << 10;
};

/// Thrown by every member if the first member cannot create the memory.
class NoSharedMemory : public c10::Error {
  using Error::Error;
};

/// Creates the backend. Every member must call this function. `store` must have
/// keys for this group only; the store is not used after the function returns.
/// Throws NoSharedMemory, or another RuntimeError if the members cannot
/// rendezvous.
GroupBackendPtr shared_memory_backend(
    GroupMembers members,
    const c10::intrusive_ptr<c10d::Store>& store,
    const SharedMemoryOptions& options);

} // namespace dtensor::detail
