// SPDX-License-Identifier: BSD-3-Clause
// State dictionaries: the parameters and buffers of a model, and the state of
// its optimizer, by name.
//
//   auto shards = get_model_state_dict(*model);                 // DTensors
//   auto full = get_model_state_dict(*model, {.full_state_dict = true});
//   set_model_state_dict(*other, full);      // other ranks, other layouts
//
// A dictionary can be loaded into a model with any layouts. DTensors in it are
// redistributed. A plain tensor with the global shape is taken as the full
// tensor, and a plain tensor with the local shape as this rank's shard.
//
// Python: torch.distributed.checkpoint.state_dict.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>
#include <torch/ordered_dict.h>

#include <string>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace dtensor {

/// Tensors by full name, in the order of the model.
using StateDict = torch::OrderedDict<std::string, at::Tensor>;

/// Options for the functions below.
/// Python: torch.distributed.checkpoint.state_dict.StateDictOptions.
struct StateDictOptions {
  /// Returns full tensors, as plain tensors on every rank, in the form that
  /// torch::save expects. Every rank must make the call.
  bool full_state_dict = false;
  /// Returns plain local tensors, for one file per rank. (Not in Python.)
  bool local_shards = false;
  /// Returns tensors on the CPU. With full_state_dict, only rank 0 gets them,
  /// and the other ranks get an empty dictionary.
  bool cpu_offload = false;
  /// Leaves out parameters that do not require grad.
  bool ignore_frozen_params = false;
  /// Requires that the loaded dictionary has exactly the names of the model.
  bool strict = true;
  /// Loads the (full) dictionary of rank 0; other ranks pass an empty one.
  /// Throws ValueError on all ranks if rank 0 lacks the full value of a tensor.
  bool broadcast_from_rank0 = false;
};

/// Returns parameters and buffers by full name; a tensor that several modules
/// share appears under each of its names. By default values are DTensors if the
/// model's are, and share the model's memory.
/// Throws ValueError for full_state_dict together with local_shards.
DTENSOR_API StateDict get_model_state_dict(
    const torch::nn::Module& module,
    const StateDictOptions& options = {});

/// Copies the values of `state` to the module's tensors, which keep their
/// layouts. A shared tensor may be given under any of its names.
/// Throws ValueError, and changes nothing, if shapes differ or (if strict)
/// names are missing or unexpected. The message lists all of them.
DTENSOR_API void set_model_state_dict(
    torch::nn::Module& module,
    const StateDict& state,
    const StateDictOptions& options = {});

/// Returns the optimizer's state of the module's parameters, under names like
/// "state.w1.weight.exp_avg", and all options of their groups, under names like
/// "param_groups.w1.weight.lr". Numbers and flags are 0-dim tensors; "betas" is
/// a tensor of two numbers. LBFGS has vectors that concatenate all parameters
/// in order. These vectors are under the name of the first parameter:
/// "state.w1.weight.d", "state.w1.weight.old_dirs.0". Its option
/// "line_search_fn" is a flag.
/// Throws NotImplementedError for an optimizer other than SGD, Adam, AdamW,
/// Adagrad, RMSprop and LBFGS, and ValueError for a parameter of the optimizer
/// that is not in the module.
DTENSOR_API StateDict get_optimizer_state_dict(
    const torch::nn::Module& module,
    const torch::optim::Optimizer& optimizer,
    const StateDictOptions& options = {});

/// Loads a dictionary of get_optimizer_state_dict(). Each tensor gets the
/// layout of its parameter; vectors over all parameters are replicated. Options
/// replace those of the parameter's group. Options that `state` lacks are
/// unchanged. If strict, a parameter has its complete state or none.
/// Throws the errors of the functions above, and ValueError if `state` has
/// different options for parameters of one group. On an error nothing changes.
DTENSOR_API void set_optimizer_state_dict(
    const torch::nn::Module& module,
    torch::optim::Optimizer& optimizer,
    const StateDict& state,
    const StateDictOptions& options = {});

} // namespace dtensor
