// SPDX-License-Identifier: BSD-3-Clause
// The backends that register_backend() need not register, except shared memory
// (shared_memory_backend_impl.h).
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/backends.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::detail {

// The Gloo backend that LibTorch includes.

/// Connects every pair of members. Listens on the loopback interface if all
/// members are on one host; otherwise on the interface GLOO_SOCKET_IFNAME, or
/// on the address of this host's name.
GroupBackendPtr make_gloo(GroupMembers members, const RendezvousInfo& place);
/// Returns the error of a thread of Gloo that has thrown and stopped; empty if
/// there is none. The object that the thread served must then not be destroyed,
/// because its destructor would wait for the thread.
std::string gloo_thread_failure();

// The NCCL backend of LibTorch builds with CUDA. Other builds compile
// no_nccl.cpp instead of nccl.cpp.

bool has_nccl();

/// Creates an NCCL backend on the current GPU, with its own streams. Results
/// are ready on the caller's current stream; the host does not wait. Throws
/// ValueError if there is no GPU, or if another member uses the same GPU.
GroupBackendPtr make_nccl(GroupMembers members, const RendezvousInfo& place);
/// Claims `gpu` for this member in the store of the group. Throws ValueError if
/// another member has claimed it. `name` identifies the physical GPU: two
/// processes have the same name exactly if they use the same GPU, regardless of
/// its device index.
void claim_gpu(
    const GroupMembers& members,
    const RendezvousInfo& place,
    c10::Device gpu,
    const std::string& name);

// MPI as a backend, loaded from a module next to this library:
// libdtensor_openmpi.so or libdtensor_mpich.so. Each module is built if its MPI
// implementation was found.

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

// Hierarchical backend for several hosts with equally many members each
// (hierarchical.cpp). The backend combines a backend within each host with
// backends across hosts.

/// Returns true if every host has the same number of members, and at least two.
bool is_regular(const RendezvousInfo& place);

/// Creates the hierarchical backend. All members must call this function.
/// `within` and `across` create the backends of the two kinds of groups.
/// `across` also creates a backend of all members, for point-to-point messages
/// and all_to_all. Requires is_regular(place).
GroupBackendPtr hierarchical_backend(
    GroupMembers members,
    const RendezvousInfo& place,
    const MakeBackend& within,
    const MakeBackend& across);

// Fake backend: one rank of a world without the other ranks.

/// Makes a backend whose collectives return at once, on any device. Results
/// have the shape that they would have if all ranks passed tensors of the same
/// shapes. Reductions return this rank's own values. Data from other ranks
/// (all_gather, broadcast, scatter, recv) are zeros.
DTENSOR_INTERNAL_API GroupBackendPtr fake_backend(GroupMembers members);

// A backend per device type. A group then uses one backend for CPU tensors and
// another for CUDA tensors.

/// Backend for tensors of one device type.
struct DeviceBackend {
  c10::DeviceType device = c10::kCPU;
  std::string name;
  MakeBackend make;
};

/// Makes a backend that dispatches on the tensor's device. Calls without a
/// tensor (barriers, strings, exchanged sizes) use the CPU's backend, or the
/// first backend if the CPU has none. The CPU's backend is made at once. All
/// members make another backend when they pass the first tensor of its device.
/// A backend listed for several devices is made once. Throws ValueError for a
/// tensor on a device without a backend.
GroupBackendPtr per_device_backend(
    GroupMembers members,
    const RendezvousInfo& place,
    std::vector<DeviceBackend> backends);

} // namespace dtensor::detail
