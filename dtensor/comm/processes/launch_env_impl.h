// SPDX-License-Identifier: BSD-3-Clause
// What a launcher tells a process by its environment.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace dtensor::detail {

inline constexpr int64_t kLastPort = 65535;

struct LaunchEnv {
  /// "torchrun" (and dtensor-run, which says the same), "OpenMPI", "PMI" (MPICH
  /// and its kin) or "Slurm"; empty: the program was started by itself.
  std::string launcher;
  int64_t rank = 0;
  int64_t size = 1;
  /// How many ranks this host has; 0: not said.
  int64_t local_size = 0;
  /// Where the store is, by MASTER_ADDR and MASTER_PORT; empty and 0: not said.
  std::string master_addr;
  int master_port = 0;
  /// The launcher keeps the store there; otherwise rank 0 does.
  bool launcher_has_store = false;
  /// What tells this job from others, on one line; may be empty.
  std::string job;
  /// How often the launcher has started the job before.
  int64_t attempt = 0;
  /// How many threads of a process are ranks, by DTENSOR_RANKS_PER_PROCESS.
  int64_t ranks_per_process = 1;
  /// How often this process has been a rank before.
  int64_t session = 0;

  /// Whether the store lies in this process.
  bool keeps_store() const {
    return rank == 0 && !launcher_has_store;
  }
};

/// The variable's value; null if it is not set.
using Lookup = std::function<const char*(const char* name)>;

/// Throws ValueError unless so many ranks can meet.
void check_world_size(int64_t ranks);

/// `value` in quotation marks, for an error: its first bytes if it is long.
std::string quoted(const std::string& value);

/// Throws ValueError where variables are missing, out of range, or contradict
/// each other.
LaunchEnv read_launch_env(const Lookup& lookup);
LaunchEnv read_launch_env();

} // namespace dtensor::detail
