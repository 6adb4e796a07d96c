// SPDX-License-Identifier: BSD-3-Clause
// One program for ranks of every kind:
//
//   int main() {
//     run_world(2, [] {
//       auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
//       ...
//     });
//   }
//
//   ./program                       two threads of one process
//   mpirun -n 4 ./program           four processes; torchrun, srun and
//   dtensor-run -n 4 ./program      dtensor-run likewise
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

/// What the launcher says of this process: its rank, or the first of its ranks
/// where DTENSOR_RANKS_PER_PROCESS says that it has several, and of how many.
struct Launched {
  int64_t rank;
  int64_t size;
};

/// Nothing if no launcher started this process. Throws ValueError where the
/// launcher's variables contradict each other.
DTENSOR_API std::optional<Launched> launched();

/// Options of run_world.
struct RunWorldOptions {
  /// Of a launcher's processes: how many threads of each are ranks, the same in
  /// all. 0: what the environment's DTENSOR_RANKS_PER_PROCESS says, else 1.
  int64_t ranks_per_process = 0;
  /// Where ranks are threads.
  RunRanksOptions threads = {};
  /// Where they are processes.
  ProcessGroupOptions processes = {};
};

/// Runs `fn` as each rank of a world. Where a launcher started this process it
/// is one rank of the launcher's, by init_process_group, until `fn` has ended;
/// `ranks` then means nothing. Otherwise `ranks` threads run it, as by
/// run_ranks. What `fn` throws is thrown on; peers that wait for this rank are
/// told what it was.
/// With n ranks per process, thread i of process p is rank p * n + i. Groups
/// within a process meet as threads do, others over the processes' backend. A
/// rank that throws ends the others of its process as in run_ranks.
DTENSOR_API void run_world(
    int64_t ranks,
    const std::function<void()>& fn,
    const RunWorldOptions& options = {});

} // namespace dtensor
