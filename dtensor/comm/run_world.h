// SPDX-License-Identifier: BSD-3-Clause
// run_world: runs a program on ranks that are threads or processes.
//
//   int main() {
//     run_world(2, [] {
//       auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
//       ...
//     });
//   }
//
//   ./program                       two threads of one process
//   mpirun -n 4 ./program           four processes
//   dtensor-run -n 4 ./program      four processes; torchrun, srun: likewise
//   DTENSOR_RANKS_PER_PROCESS=2 mpirun -n 4 ./program
//                                   eight ranks, two threads in each process
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/init_process_group.h>
#include <dtensor/comm/ranks.h>

#include <cstdint>
#include <functional>
#include <optional>

namespace dtensor {

/// Rank and world size that the launcher gave this process. With
/// DTENSOR_RANKS_PER_PROCESS, `rank` is the first of this process's ranks, and
/// `size` counts the ranks of all processes.
struct Launched {
  int64_t rank;
  int64_t size;
};

/// Returns the rank and world size of the launcher; nullopt if no launcher
/// started this process. Throws ValueError if the launcher's variables
/// contradict each other.
DTENSOR_API std::optional<Launched> launched();

/// Options of run_world.
struct RunWorldOptions {
  /// Number of ranks in each process of a launcher, one thread each; the same
  /// in all processes. 0: the environment variable DTENSOR_RANKS_PER_PROCESS,
  /// else 1.
  int64_t ranks_per_process = 0;
  /// Options for ranks that are threads.
  RunRanksOptions threads = {};
  /// Options for ranks that are processes.
  ProcessGroupOptions processes = {};
};

/// Runs `fn` on every rank of a world. If a launcher started this process, the
/// process joins the launcher's world, as by init_process_group, until `fn`
/// returns. The process is then one rank, or several
/// (RunWorldOptions::ranks_per_process), and `ranks` is ignored. Without a
/// launcher, `ranks` threads run `fn`, as in run_ranks. Rethrows errors of
/// `fn`, and reports them to peers that wait for this rank. Throws ValueError
/// for `ranks` below 1 (without a launcher), for a negative ranks_per_process,
/// and for launcher variables that contradict each other.
///
/// With n ranks per process, thread i of process p has rank p * n + i. Groups
/// inside one process communicate as in run_ranks, other groups over the
/// processes' backend. If a rank throws, the other ranks of its process end as
/// in run_ranks.
/// Python: run_world of this library's package dtensor.
DTENSOR_API void run_world(
    int64_t ranks,
    const std::function<void()>& fn,
    const RunWorldOptions& options = {});

} // namespace dtensor
