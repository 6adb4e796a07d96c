// SPDX-License-Identifier: BSD-3-Clause
// MPI as a backend, loaded from a module next to this library:
// libdtensor_openmpi.so or libdtensor_mpich.so. Each module is built if its MPI
// implementation was found.
#pragma once

#include <dtensor/comm/backends.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace dtensor::detail {

/// Returns true if the named backend communicates by MPI.
bool uses_mpi(std::string_view name);

/// Loads the module for backend `name`: the implementation of the launcher for
/// "mpi", otherwise the named implementation. Throws RuntimeError if the module
/// does not exist.
void load_mpi(std::string_view name);
/// Initializes MPI, unless the program has done so. All ranks call it after the
/// rendezvous. Throws RuntimeError if MPI gives this process a different rank
/// or size.
void begin_mpi(int64_t rank, int64_t size);
/// Ends the use of MPI by a world; does nothing if begin_mpi() was not called.
void end_mpi(bool has_failed);

GroupBackendPtr make_mpi(GroupMembers members, const RendezvousInfo& place);

} // namespace dtensor::detail
