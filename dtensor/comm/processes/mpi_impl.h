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

/// Loads the module that backend `name` wants, and begins MPI in it: that of
/// the launcher for "mpi", else the one that is named. All ranks call it.
/// Throws RuntimeError if there is none, or if it does not fit.
void begin_mpi(std::string_view name, int64_t rank, int64_t size);
/// A world ends; does nothing where none has begun.
void end_mpi(bool has_failed);

GroupBackendPtr make_mpi(GroupMembers members, const MeetingPlace& place);

} // namespace dtensor::detail
