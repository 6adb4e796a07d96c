// SPDX-License-Identifier: BSD-3-Clause
// MPI as a backend, from a module beside this library: libdtensor_openmpi.so or
// libdtensor_mpich.so, as they were found when it was built.
#pragma once

#include <dtensor/comm/backends.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace dtensor::detail {

/// Whether the backend of this name communicates by MPI.
bool uses_mpi(std::string_view name);

/// Loads the module that backend `name` wants: that of the launcher for "mpi",
/// else the one that is named. Throws RuntimeError if there is none.
void load_mpi(std::string_view name);
/// Begins MPI, if the program has not. All ranks call it, once they have met.
/// Throws RuntimeError if MPI knows this process by another rank or size.
void begin_mpi(int64_t rank, int64_t size);
/// A world ends; does nothing where none has begun.
void end_mpi(bool has_failed);

GroupBackendPtr make_mpi(GroupMembers members, const MeetingPlace& place);

} // namespace dtensor::detail
