// SPDX-License-Identifier: BSD-3-Clause
// Ranks that are processes, of one host or of many.
//
//   int main() {
//     init_process_group();   // asks the launcher's variables who this is
//     auto mesh = init_device_mesh(torch::kCPU, {get_world_size()}, {"tp"});
//     ...
//     destroy_process_group();
//   }
//
//   torchrun --no-python --nproc-per-node 4 ./program
//   mpirun -n 4 ./program
//   dtensor-run -n 4 ./program
//
// A program that is to run on threads too, or alone, leaves the choice to
// run_world (comm/run_world.h).
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
  /// What carries tensors: a name (comm/backends.h), or one for each type of
  /// device, "cpu:gloo,cuda:nccl". Empty: what the environment's
  /// DTENSOR_BACKEND says, else "auto". With "fake", nobody is met: this
  /// process is `rank` of `world_size` by itself.
  std::string backend = {};
  /// Where ranks meet. Empty or "env://": what the launcher's variables say,
  /// else within this host. "tcp://host:port": rank 0 listens there.
  /// "file:///path": a file that all hosts see and that does not exist yet.
  std::string init_method = {};
  /// Which rank this is, and of how many; by default what the launcher says.
  std::optional<int64_t> rank = std::nullopt;
  std::optional<int64_t> world_size = std::nullopt;
  /// Instead of an init_method: a store that all ranks can reach.
  c10::intrusive_ptr<c10d::Store> store = nullptr;
  /// How long ranks wait for each other, here and in each collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Ranks compare what they call before each collective, and all of them throw
  /// ValueError where it differs; costs a message each. The environment's
  /// TORCH_DISTRIBUTED_DEBUG=DETAIL asks for it too.
  bool checks = false;
  /// As RunRanksOptions::keep_freed_memory, while this process is a rank.
  bool keep_freed_memory = true;
};

/// Makes this process a rank: this thread, and all threads that are no ranks of
/// another world. Returns once all ranks have come and draw as rank 0 does
/// (docs/concepts/random.md). Without launcher and options: rank 0 of 1.
/// Throws ValueError for variables and options that are missing or do not fit,
/// RuntimeError in a process that is a rank already, and where ranks do not
/// come in time, are of another version of this library, or of another job.
/// Python: torch.distributed.init_process_group.
DTENSOR_API void init_process_group(const ProcessGroupOptions& options = {});

/// Ends this rank, in the thread that began it. Groups, meshes and DTensors
/// that it made may not be used any more. Does nothing in a process that is
/// no rank.
/// Python: torch.distributed.destroy_process_group.
DTENSOR_API void destroy_process_group();

/// Whether this process is a rank by init_process_group.
/// Python: torch.distributed.is_initialized.
DTENSOR_API bool is_initialized();

/// This rank's number among those of its host, from 0 in order of their ranks:
/// which device to take, before the first collective. 0 where ranks are
/// threads. Python: torch.distributed.get_node_local_rank.
DTENSOR_API int64_t get_node_local_rank();

} // namespace dtensor
