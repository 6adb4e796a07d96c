// SPDX-License-Identifier: BSD-3-Clause
// Initialization of ranks that are processes, on one host or several.
//
//   int main() {
//     init_process_group();   // reads the launcher's variables
//     auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
//     ...
//     destroy_process_group();
//   }
//
//   torchrun --no-python --nproc-per-node 4 ./program
//   mpirun -n 4 ./program
//   dtensor-run -n 4 ./program
//
// run_world (comm/run_world.h) also runs the same program on threads, or as one
// rank.
#pragma once

#include <dtensor/api.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace dtensor {

/// Options of init_process_group.
struct ProcessGroupOptions {
  /// Backend name (comm/backends.h), or one per device type,
  /// "cpu:gloo,cuda:nccl". Empty: the environment variable DTENSOR_BACKEND,
  /// else "auto". With "fake", this process acts as `rank` of `world_size`
  /// without any other rank.
  std::string backend = {};
  /// Rendezvous of the ranks. Empty or "env://": at the address that the
  /// launcher's variables give, else within this host. "tcp://host:port": rank
  /// 0 listens there. "file:///path": a file that is visible to all hosts and
  /// does not exist yet.
  std::string init_method = {};
  /// The rank of this process and the world size; by default the launcher's
  /// values.
  std::optional<int64_t> rank = std::nullopt;
  std::optional<int64_t> world_size = std::nullopt;
  /// Store that all ranks can reach; replaces `init_method`.
  c10::intrusive_ptr<c10d::Store> store = nullptr;
  /// Longest wait for other ranks, at initialization and in each collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Makes ranks compare their calls before each collective. If the calls
  /// differ, all ranks throw ValueError. Costs a message per call. The
  /// environment variable TORCH_DISTRIBUTED_DEBUG=DETAIL enables it, too.
  bool checks = false;
  /// Same as RunRanksOptions::keep_freed_memory, while this process is a rank.
  bool keep_freed_memory = true;
};

/// Makes this process a rank. This thread and all threads that are not ranks of
/// another world then act as that rank. Returns once all ranks have joined and
/// have rank 0's random state (docs/concepts/random.md). Without a launcher and
/// options, the process becomes rank 0 of a world of one rank.
/// Throws ValueError for missing or inconsistent variables and options. Throws
/// RuntimeError if this process is a rank already, or if ranks do not join in
/// time. Throws RuntimeError also if a rank has another version of this library
/// or belongs to another job.
/// Python: torch.distributed.init_process_group.
DTENSOR_API void init_process_group(const ProcessGroupOptions& options = {});

/// Ends this rank; call it in the thread that called init_process_group.
/// Groups, meshes and DTensors that the rank made must not be used afterwards.
/// Does nothing if the process is not a rank.
/// Python: torch.distributed.destroy_process_group.
DTENSOR_API void destroy_process_group();

/// Returns true between init_process_group and destroy_process_group.
/// Python: torch.distributed.is_initialized.
DTENSOR_API bool is_initialized();

/// Returns this rank's index among the ranks of its host, from 0 in rank order.
/// Programs use it to select a device before the first collective. 0 if ranks
/// are threads.
/// Python: torch.distributed.get_node_local_rank.
DTENSOR_API int64_t get_node_local_rank();

namespace detail {

/// destroy_process_group() for a rank that has failed: publishes the reason and
/// does not wait for other ranks.
void abandon_process_group(const std::string& why);

/// Returns the number of earlier process groups of this process. Stores outlive
/// a process group, so their keys contain this number.
int64_t next_session();

} // namespace detail

} // namespace dtensor
