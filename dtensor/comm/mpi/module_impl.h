// SPDX-License-Identifier: BSD-3-Clause
// What a module for one implementation of MPI offers the library, which loads
// it (comm/processes/mpi_impl.h) and is not linked with any MPI.
#pragma once

#include <dtensor/comm/backends.h>

#include <cstdint>

namespace dtensor::detail {

struct MpiModule {
  /// Begins MPI, if the program has not done so. All ranks call it. Throws
  /// RuntimeError if MPI knows this process by another rank or size.
  void (*begin)(int64_t rank, int64_t size);
  /// A world ends. If none has failed, MPI ends with the process: it cannot
  /// begin again, and another world may come.
  void (*end)(bool has_failed);
  /// All members call it.
  GroupBackendPtr (*make)(GroupMembers members, const MeetingPlace& place);
};

/// The only name that a module exports for the library.
inline constexpr const char* kMpiEntry = "dtensor_mpi_module";
using MpiEntry = const MpiModule* (*)();

} // namespace dtensor::detail
