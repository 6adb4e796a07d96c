// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints: a training run in a folder, saved from any layout on any number
// of ranks and loaded into any other.
//
//   CheckpointExtra extra = {{"step", 100}};
//   save_checkpoint("run/step_100", {model.get(), &optimizer, {}, &extra});
//
//   // later, on other ranks and another mesh
//   const auto last = latest_checkpoint("run");
//   load_checkpoint(*last, {model.get(), &optimizer, {}, &extra});
//
// The folder holds files of safetensors with pieces of tensors, as Python's
// HuggingFaceStorageWriter(save_distributed=True) writes and
// HuggingFaceStorageReader reads, each element once, and checkpoint.json. It
// gets its name when all of it is on disk: there is no half a checkpoint.
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

/// What a training loop keeps beside: numbers, texts and tensors.
using CheckpointValue =
    std::variant<bool, int64_t, double, std::string, at::Tensor>;
using CheckpointExtra = std::map<std::string, CheckpointValue>;

/// What is saved or loaded; what is null is left out. All ranks pass the same
/// names in the same layouts. A plain tensor, and a value of `extra`, is the
/// same on all ranks: save_checkpoint() compares checksums.
struct CheckpointState {
  /// Parameters and buffers, under their names in the module.
  torch::nn::Module* model = nullptr;
  /// Of the model's parameters: get_optimizer_state_dict() under "optimizer.",
  /// options of the groups included. Loading puts them in place of those that
  /// the groups have.
  torch::optim::Optimizer* optimizer = nullptr;
  /// Further tensors, plain or DTensors, under their names.
  StateDict* tensors = nullptr;
  /// Tensors of it stand in the files under "extra.". Loading replaces it; a
  /// tensor that is there says the layout.
  CheckpointExtra* extra = nullptr;
};

/// Options of save_checkpoint and AsyncSaver.
struct SaveOptions {
  /// Whole tensors in model.safetensors, or, where that would be larger than
  /// `max_file_bytes`, in several files behind model.safetensors.index.json, as
  /// other programs expect a model. They are put together on disk, each by one
  /// rank.
  bool full = false;
  int64_t max_file_bytes = 5'000'000'000;
  /// Takes the place of a checkpoint, of an empty folder, or of a link to one
  /// of these. Anything else that is there is an error, and stays.
  bool overwrite = false;
  /// Saves what rank 0 has of plain tensors and values of `extra` that differ
  /// between ranks; else that is an error.
  bool allow_differences = false;
  /// Who saves; by default all ranks of the world.
  GroupPtr group = nullptr;
  /// How long a rank waits for files of the others when its own are written:
  /// rank 0, and with `full` each.
  std::chrono::seconds timeout{600};
};

/// Saves `state` as the folder `path`, whose parent must be there, on a file
/// system that all ranks share. Every element is written once, by one of the
/// ranks that have it, so that all write about as many bytes. All ranks of the
/// group call it, and it returns on all when the checkpoint is on disk, or
/// throws on all, and leaves what was there.
/// Throws ValueError for a Partial tensor, a dtype that safetensors does not
/// have, a name twice, a mesh with ranks that do not save, ranks that do not
/// save the same, plain tensors and values of `extra` that differ between ranks
/// (without allow_differences), and a path that exists (without overwrite, or
/// if it is no checkpoint); RuntimeError for what the file system refuses.
/// Python: torch.distributed.checkpoint.save.
DTENSOR_API void save_checkpoint(
    const std::string& path,
    const CheckpointState& state,
    const SaveOptions& options = {});

/// Options of load_checkpoint.
struct LoadOptions {
  /// The checkpoint has every tensor of `state`, and the model every one of the
  /// checkpoint.
  bool strict = true;
  /// Compares the checksums of what is read, all of them before a tensor of
  /// the program changes; each block is checked by one of the ranks that read
  /// it. Files of others have none.
  bool verify = true;
  /// Of a part that several ranks have, and that is larger than a megabyte,
  /// each reads a share, and they exchange it.
  bool share_reading = true;
  /// Who loads; by default all ranks of the world.
  GroupPtr group = nullptr;
};

/// Fills `state` from the checkpoint at `path`: one of save_checkpoint, a
/// folder of Python's HuggingFaceStorageWriter, or anything that open_weights()
/// reads. Layouts and dtypes of the targets stay; each rank reads the bytes of
/// its parts alone. Tensors on the meta device get memory. All ranks of the
/// group call it.
/// Throws, on all ranks, before anything has changed: ValueError for names that
/// are missing, that the model does not have (both if strict), other shapes,
/// and complex values for a real tensor, in one error; for a mesh with ranks
/// that do not load, and files that are cut short, missing or malformed; what
/// set_optimizer_state_dict() throws; RuntimeError for bytes that are not those
/// that were saved.
/// Python: torch.distributed.checkpoint.load.
DTENSOR_API void load_checkpoint(
    const std::string& path,
    const CheckpointState& state,
    const LoadOptions& options = {});

} // namespace dtensor
