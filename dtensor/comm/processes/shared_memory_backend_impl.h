// SPDX-License-Identifier: BSD-3-Clause
// The backend of a group whose ranks are processes of one host and one user.
//
//   GroupBackendPtr backend = shared_memory_backend(
//       members, c10::make_intrusive<c10d::PrefixStore>("tp", store),
//       {.timeout = std::chrono::minutes(30)});
//
// Tensors go through memory that all members map, and that nobody has to clean
// up. It carries CPU tensors of any dtype and size, and compares in each
// collective what the members call: where that differs, all of them throw
// ValueError and may go on. Whatever else ends a collective (a member that has
// ended, is missing, or failed) ends the group: every member throws
// RuntimeError, in this and in all later calls.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <dtensor/comm/group_backend.h>

#include <chrono>

namespace c10d {
class Store;
}

namespace dtensor::detail {

/// How many members a group may have: a table of two numbers for each fits into
/// half a notice.
constexpr int64_t kMostMembers = 128;

struct SharedMemoryOptions {
  /// Of one collective, and of the group's first meeting.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// What a member shows the others at a time, twice: large enough that meeting
  /// costs little beside it, and small enough to stay in the caches. A multiple
  /// of 4096, the same on all members.
  int64_t block_bytes = 256 << 10;
};

/// The first member cannot make the memory. Every member throws it.
class NoSharedMemory : public c10::Error {
  using Error::Error;
};

/// Every member calls it. `store`, whose keys are this group's alone, is used
/// until it returns. Throws NoSharedMemory, or another RuntimeError where the
/// members cannot meet.
GroupBackendPtr shared_memory_backend(
    GroupMembers members,
    const c10::intrusive_ptr<c10d::Store>& store,
    const SharedMemoryOptions& options);

} // namespace dtensor::detail
