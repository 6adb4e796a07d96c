// SPDX-License-Identifier: BSD-3-Clause
// Asynchronous checkpoints: saving while training continues.
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

/// Saves checkpoints in the background. Copies this rank's shards into a
/// buffer, which later saves reuse, and writes them in a thread. An AsyncSaver
/// belongs to the rank that created it.
/// Python: torch.distributed.checkpoint.async_save.
class DTENSOR_API AsyncSaver {
 public:
  AsyncSaver();
  /// Waits for this rank's files. On rank 0, and on all ranks for a full
  /// checkpoint, also waits for the other ranks' files, up to the timeout. The
  /// destructor drops errors; call wait() first to get them.
  ~AsyncSaver();
  AsyncSaver(const AsyncSaver&) = delete;
  AsyncSaver& operator=(const AsyncSaver&) = delete;

  /// Starts a save like save_checkpoint(). Returns as soon as `state` may be
  /// modified. The checkpoint becomes visible when all ranks have written,
  /// whether or not they call wait(). First waits for the previous save, and
  /// throws its errors. All ranks of the group must call it.
  void save(
      const std::string& path,
      const CheckpointState& state,
      const SaveOptions& options = {});

  /// Waits until the last checkpoint is on disk. All ranks must call it. Throws
  /// the errors of save_checkpoint(), on all ranks, once.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

} // namespace dtensor
