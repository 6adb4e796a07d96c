// SPDX-License-Identifier: BSD-3-Clause
// checkpoint.json, the manifest that makes a folder a checkpoint. The manifest
// is written last. It lists all files with their sizes and the checksums of
// their headers, and holds the values that are not tensors. A checksum protects
// the manifest itself.
#pragma once

#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/checkpoint/tensor_file_impl.h>
#include <dtensor/weights/json_document_impl.h>
#include <dtensor/weights/weight_file.h>

#include <map>
#include <optional>
#include <set>
#include <string>

namespace dtensor::detail {

/// Prefix of errors about loaded checkpoints.
constexpr const char* kLoadCheckpoint = "load_checkpoint";

constexpr const char* kManifest = "checkpoint.json";

struct Manifest {
  int64_t ranks = 0; // number of ranks that saved
  FileNotes files;
  CheckpointExtra extra; // without tensors
  // Names of the tensors of `extra`. Unset for checkpoints of versions that did
  // not record them.
  std::optional<std::set<std::string>> extra_tensors;
  /// Additional names of tensors, mapped to the names under which they are
  /// saved.
  std::map<std::string, std::string> tied;
  std::string checksum; // of all fields above
};

/// Returns the values, the names of tensors and the additional names (see
/// Manifest) as JSON. Throws ValueError for text that is not UTF-8.
std::string extra_text(
    const CheckpointExtra& extra,
    const std::map<std::string, std::string>& tied = {});

/// Converts file notes to JSON and back. `list` is the path of the JSON file.
/// Throws ValueError for a name that is not a plain path within its folder.
std::string notes_text(const FileNotes& notes);
FileNotes notes_of(const JsonView& files, const std::string& list);

/// Returns the text of checkpoint.json. `extra` is JSON.
std::string
manifest_text(int64_t ranks, const std::string& extra, const FileNotes& files);

/// Reads the manifest of a folder; nullopt if there is none. Throws ValueError
/// if the manifest has been modified, or if files are missing, truncated or
/// have another header.
std::optional<Manifest> read_manifest(const std::string& folder);

/// Returns true if the folder has a checkpoint.json with a valid checksum.
/// Throws ValueError for any other text.
bool has_manifest(const std::string& folder);

/// The files of an open checkpoint and its manifest.
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

/// Opens a checkpoint. For a checkpoint of save_checkpoint(), opens only the
/// files that the manifest lists.
OpenedCheckpoint open_checkpoint(const std::string& path);

} // namespace dtensor::detail
