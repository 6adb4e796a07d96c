// SPDX-License-Identifier: BSD-3-Clause
// OpenedCheckpoint: the files of an open checkpoint and its manifest.
#pragma once

#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/weights/weight_file.h>

#include <optional>
#include <string>

namespace dtensor::detail {

struct OpenedCheckpoint {
  std::optional<Manifest> manifest; // unset: written by other programs
  WeightFilePtr file;               // null: no tensors

  /// Returns the weight of that name; null if there is none.
  const WeightInfo* find(const std::string& name) const;
  /// Returns the name under which the checkpoint stores the tensor `name`. A
  /// tensor that several modules share may be stored under another of its
  /// names.
  std::string stored_name(const std::string& name) const;
  /// Returns true for state of the optimizer or of the training loop, which
  /// loading a model alone ignores. (A weight may also have a name such as
  /// "optimizer.w" or "extra.w".)
  bool is_non_model_state(const std::string& name) const;
};

/// Opens a checkpoint. For a checkpoint of save_checkpoint(), only opens the
/// files that were saved with it.
OpenedCheckpoint open_checkpoint(const std::string& path);

} // namespace dtensor::detail
