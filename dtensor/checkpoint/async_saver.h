// SPDX-License-Identifier: BSD-3-Clause
// Saving beside the training that goes on.
//
//   AsyncSaver saver;
//   for (int64_t step = 1; step <= steps; ++step) {
//     train(step);
//     if (step % 100 == 0) {
//       saver.save("run/step_" + std::to_string(step), state);
//       keep_last("run", 3);
//     }
//   }
//   saver.wait();
#pragma once

#include <dtensor/api.h>
#include <dtensor/checkpoint/checkpoint.h>

#include <memory>
#include <string>

namespace dtensor {

/// Copies what this rank writes to memory of its own, which the next save uses
/// again, and writes it in a thread. It belongs to the rank that made it.
/// Python: torch.distributed.checkpoint.async_save.
class DTENSOR_API AsyncSaver {
 public:
  AsyncSaver();
  /// Waits for this rank's files; on rank 0, and for a full checkpoint on all,
  /// until the others' files are there or have not come in time. Errors are
  /// lost: call wait().
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// As save_checkpoint(), but returns when `state` may be changed. The
  /// checkpoint gets its name when all ranks have written, whether they wait or
  /// not. Waits for the save before it, whose errors it throws; all ranks of
  /// the group call it.
  void save(
      const std::string& path,
      const CheckpointState& state,
      const SaveOptions& options = {});

  /// Returns when the last checkpoint is on disk; all ranks call it. Throws
  /// what save_checkpoint() would, on all ranks, once.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace dtensor
