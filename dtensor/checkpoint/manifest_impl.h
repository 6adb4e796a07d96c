// SPDX-License-Identifier: BSD-3-Clause
// checkpoint.json: what makes a folder a checkpoint. It is written last, names
// all files with their sizes and the checksums of their headers, holds what is
// no tensor, and has a checksum of its own.
#pragma once

#include <dtensor/checkpoint/checkpoint.h>
#include <dtensor/checkpoint/tensor_file_impl.h>
#include <dtensor/weights/json_document_impl.h>

#include <map>
#include <optional>
#include <set>
#include <string>

namespace dtensor::detail {

/// What messages about one that is loaded begin with.
constexpr const char* kLoadCheckpoint = "load_checkpoint";

constexpr const char* kManifest = "checkpoint.json";

struct Manifest {
  int64_t ranks = 0; // that have saved it
  FileNotes files;
  CheckpointExtra extra; // without tensors
  // Names of those; not known of checkpoints from before these were noted.
  std::optional<std::set<std::string>> extra_tensors;
  /// Further names of tensors, and the names that they are saved under.
  std::map<std::string, std::string> tied;
  std::string checksum; // of all that
};

/// Numbers and texts, the names of tensors, and further names of saved tensors
/// (see Manifest), as JSON; throws ValueError for a text that is no UTF-8.
std::string extra_text(
    const CheckpointExtra& extra,
    const std::map<std::string, std::string>& tied = {});

/// Files as JSON, and back: `list` is the file that has the JSON. Throws
/// ValueError for a name that is no plain path within its folder.
std::string notes_text(const FileNotes& notes);
FileNotes notes_of(const JsonView& files, const std::string& list);

/// `extra` and `files` are JSON.
std::string
manifest_text(int64_t ranks, const std::string& extra, const FileNotes& files);

/// That of a folder; none where there is no such file. Throws ValueError for
/// one that is not as it was written, and for files that are missing, cut short
/// or have another header.
std::optional<Manifest> read_manifest(const std::string& folder);

/// Whether a folder has a checkpoint.json with its own checksum. Throws
/// ValueError for another text.
bool has_manifest(const std::string& folder);

} // namespace dtensor::detail
