// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints: the state of a training run in a folder. A checkpoint can be
// saved from any layout on any number of ranks and loaded into any other.
//
//   CheckpointExtra extra = {{"step", 100}};
//   save_checkpoint("run/step_100", {model.get(), &optimizer, {}, &extra});
//
//   // later, on other ranks and another mesh
//   const auto last = latest_checkpoint("run");
//   load_checkpoint(*last, {model.get(), &optimizer, {}, &extra});
//
// The folder holds checkpoint.json and safetensors files with shards of the
// tensors, which contain each element once. The files have the format of
// Python's HuggingFaceStorageWriter(save_distributed=True) and
// HuggingFaceStorageReader. The folder is renamed into place once complete, so
// a partial checkpoint is never visible.
//
// Python: torch.distributed.checkpoint.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <dtensor/comm/group.h>
#include <dtensor/parallel/state_dict.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <variant>

namespace dtensor {

/// Additional values of a training loop: numbers, strings and tensors.
using CheckpointValue =
    std::variant<bool, int64_t, double, std::string, at::Tensor>;
using CheckpointExtra = std::map<std::string, CheckpointValue>;

/// State to save or load; null members are skipped. All ranks must pass the
/// same names with the same layouts. Plain tensors and values of `extra` must
/// be equal on all ranks: save_checkpoint() compares checksums.
struct CheckpointState {
  /// Parameters and buffers, under their names in the module.
  torch::nn::Module* model = nullptr;
  /// Optimizer of the model's parameters. Its get_optimizer_state_dict(), which
  /// includes the options of parameter groups, is saved under "optimizer.".
  /// Loading replaces these options.
  torch::optim::Optimizer* optimizer = nullptr;
  /// Additional tensors, plain or DTensors, under their names.
  StateDict* tensors = nullptr;
  /// Additional values. Their tensors are saved under "extra.". Loading
  /// replaces the map; a tensor that the map already contains keeps its layout.
  CheckpointExtra* extra = nullptr;
};

/// Options for save_checkpoint() and AsyncSaver.
struct SaveOptions {
  /// Saves full tensors in model.safetensors, as other programs expect. If that
  /// file would exceed `max_file_bytes`, saves several files with
  /// model.safetensors.index.json. Each full tensor is assembled on disk by one
  /// rank.
  bool full = false;
  int64_t max_file_bytes = 5'000'000'000;
  /// Replaces an existing checkpoint, an empty folder, or a link to either.
  /// Anything else at the path is an error and remains unchanged.
  bool overwrite = false;
  /// Saves rank 0's value if a plain tensor or a value of `extra` differs
  /// between ranks. If false, a difference is an error.
  bool allow_differences = false;
  /// Ranks that save. Default: all ranks of the world.
  GroupPtr group = nullptr;
  /// Time that a rank waits for the files of the other ranks after writing its
  /// own. Only rank 0 waits, or every rank with `full`.
  std::chrono::seconds timeout{600};
};

/// Saves `state` as the folder `path`. The parent folder must exist, on a file
/// system shared by all ranks. Every element is written once, by one of the
/// ranks that hold it, so that all ranks write about equally many bytes. All
/// ranks of the group must call it. Returns on all ranks when the checkpoint is
/// on disk, or throws on all ranks and leaves an existing checkpoint unchanged.
///
/// Throws ValueError for:
/// - a Partial tensor, or a dtype that safetensors does not support;
/// - a duplicate name;
/// - a mesh with ranks that do not save;
/// - ranks that do not save the same tensors;
/// - plain tensors and values of `extra` that differ between ranks (unless
///   allow_differences);
/// - a path that exists (unless `overwrite` permits its replacement).
///
/// Throws RuntimeError for errors of the file system.
///
/// Python: torch.distributed.checkpoint.save.
DTENSOR_API void save_checkpoint(
    const std::string& path,
    const CheckpointState& state,
    const SaveOptions& options = {});

/// Options for load_checkpoint().
struct LoadOptions {
  /// Requires that the checkpoint has every tensor of `state`, and the model
  /// every tensor of the checkpoint.
  bool strict = true;
  /// Verifies the checksums of all bytes that are read, before any tensor
  /// changes. Each block is verified by one of the ranks that read it. Files of
  /// other programs have no checksums.
  bool verify = true;
  /// If several ranks hold the same local shard of more than a megabyte, each
  /// of them reads a slice, and they exchange the slices. The file is then read
  /// only once.
  bool share_reading = true;
  /// Ranks that load. Default: all ranks of the world.
  GroupPtr group = nullptr;
};

/// Fills `state` from the checkpoint at `path`: a checkpoint of
/// save_checkpoint(), a folder of Python's HuggingFaceStorageWriter, or any
/// format of open_weights(). The targets keep their layouts and dtypes; each
/// rank reads only the bytes of its local shards. Tensors on the meta device
/// are allocated. All ranks of the group must call it.
///
/// All errors are thrown on all ranks, before anything has changed. Throws
/// ValueError for:
/// - names that are missing in the checkpoint or in the model (if strict),
///   shapes that differ, and complex values for a real tensor (one message
///   lists all of them);
/// - a mesh with ranks that do not load;
/// - truncated, missing or malformed files.
///
/// Throws RuntimeError for bytes that do not match their checksums, and the
/// errors of set_optimizer_state_dict().
///
/// Python: torch.distributed.checkpoint.load.
DTENSOR_API void load_checkpoint(
    const std::string& path,
    const CheckpointState& state,
    const LoadOptions& options = {});

} // namespace dtensor
