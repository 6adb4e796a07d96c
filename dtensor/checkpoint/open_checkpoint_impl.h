// SPDX-License-Identifier: BSD-3-Clause
// A checkpoint that is open: its files, and what checkpoint.json says of them.
#pragma once

#include <dtensor/checkpoint/manifest_impl.h>
#include <dtensor/weights/weight_file.h>

#include <optional>
#include <string>

namespace dtensor::detail {

struct OpenedCheckpoint {
  std::optional<Manifest> manifest; // none: files of others
  WeightFilePtr file;               // null: it has no tensors

  /// The weight of that name; null if there is none.
  const WeightInfo* find(const std::string& name) const;
  /// Returns the name under which the checkpoint has the tensor `name`, which a
  /// tensor that several modules share may have under another of its names.
  std::string stored_name(const std::string& name) const;
  /// Of one that is loaded into a model alone: what an optimizer keeps, and
  /// what a loop has beside. A weight may be called "optimizer.w" or "extra.w",
  /// too.
  bool is_beside_a_model(const std::string& name) const;
};

/// Of one of ours, the files that it had when it was saved, and no other.
OpenedCheckpoint open_checkpoint(const std::string& path);

} // namespace dtensor::detail
