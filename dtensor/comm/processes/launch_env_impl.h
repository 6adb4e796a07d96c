// SPDX-License-Identifier: BSD-3-Clause
// LaunchEnv: the rank, world size and rendezvous that a launcher passes through
// environment variables.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace dtensor::detail {

// Limits for variables and options. A number above its limit is an error
// instead of an attempt to allocate.

/// Maximum number of ranks in a world of processes.
inline constexpr int64_t kMostRanks = int64_t{1} << 20;
/// Maximum number of threads of one process that are ranks.
inline constexpr int64_t kMostThreadRanks = 4096;
inline constexpr int64_t kLastPort = 65535;

struct LaunchEnv {
  /// Name of the launcher: "torchrun" (also for dtensor-run, which sets the
  /// same variables), "OpenMPI", "PMI" (MPICH and compatible) or "Slurm". Empty
  /// if the program was started without a launcher.
  std::string launcher;
  int64_t rank = 0;
  int64_t size = 1;
  /// Number of ranks on this host; 0 if unknown.
  int64_t local_size = 0;
  /// The launcher's variable for `local_size`, for errors: "LOCAL_WORLD_SIZE is
  /// not set".
  std::string local_size_text;
  /// Address of the store (MASTER_ADDR and MASTER_PORT); empty and 0 if unset.
  std::string master_addr;
  int master_port = 0;
  /// True if the launcher hosts the store at this address; false if rank 0
  /// does.
  bool launcher_has_store = false;
  /// Identifier of this job, on one line; may be empty.
  std::string job;
  /// Number of earlier attempts of the launcher to run the job.
  int64_t attempt = 0;
  /// Number of threads per process that are ranks (DTENSOR_RANKS_PER_PROCESS).
  int64_t ranks_per_process = 1;
  /// Number of earlier process groups of this process.
  int64_t session = 0;

  /// Returns true if this process hosts the store.
  bool keeps_store() const {
    return rank == 0 && !launcher_has_store;
  }
};

/// Function that returns a variable's value, or null if it is not set.
using Lookup = std::function<const char*(const char* name)>;

/// Throws ValueError unless a world of `ranks` ranks is supported.
void check_world_size(int64_t ranks);

/// Returns `value` in quotation marks for an error message, truncated if it is
/// long.
std::string quoted(const std::string& value);

/// Reads the environment. Throws ValueError if variables are missing, out of
/// range, or contradictory.
LaunchEnv read_launch_env(const Lookup& lookup);
LaunchEnv read_launch_env();

} // namespace dtensor::detail
