// SPDX-License-Identifier: BSD-3-Clause
// MpiModule: interface of a module for one implementation of MPI. The library
// loads the module libdtensor_<implementation>.so from its own folder, and is
// not itself linked with any MPI. dtensor/contrib/mpi is built as the modules
// for OpenMPI and MPICH.
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/backends.h>

#include <cstdint>

namespace dtensor {

struct DTENSOR_API MpiModule {
  /// Initializes MPI unless the program has done so. All ranks call it. Throws
  /// RuntimeError if MPI assigns this process another rank or size.
  void (*begin)(int64_t rank, int64_t size);
  /// Ends a world. If no world has failed, MPI is finalized when the process
  /// exits, not earlier: MPI cannot be initialized twice, and another world may
  /// follow.
  void (*end)(bool has_failed);
  /// Makes the backend of one group. All members call it.
  GroupBackendPtr (*make)(GroupMembers members, const RendezvousInfo& place);
};

} // namespace dtensor

/// The only function that a module exports. The library finds this function by
/// name.
extern "C" DTENSOR_API const dtensor::MpiModule* dtensor_mpi_module();
