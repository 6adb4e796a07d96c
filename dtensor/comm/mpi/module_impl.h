// SPDX-License-Identifier: BSD-3-Clause
// Interface of a module for one implementation of MPI. The library loads the
// module (comm/processes/mpi_impl.h) and is not itself linked with any MPI.
#pragma once

#include <dtensor/comm/backends.h>

#include <cstdint>

namespace dtensor::detail {

struct MpiModule {
  /// Initializes MPI unless the program has done so. All ranks call it. Throws
  /// RuntimeError if MPI assigns this process another rank or size.
  void (*begin)(int64_t rank, int64_t size);
  /// Ends a world. If no world has failed, MPI is finalized when the process
  /// exits: it cannot be initialized twice, and another world may follow.
  void (*end)(bool has_failed);
  /// Makes the backend of one group. All members call it.
  GroupBackendPtr (*make)(GroupMembers members, const RendezvousInfo& place);
};

/// Name of the only symbol that a module exports for the library.
inline constexpr const char* kMpiEntry = "dtensor_mpi_module";
using MpiEntry = const MpiModule* (*)();

} // namespace dtensor::detail
