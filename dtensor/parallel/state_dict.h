// SPDX-License-Identifier: BSD-3-Clause
// State dictionaries: the parameters and buffers of a model, and what its
// optimizer keeps, by name.
//
//   auto parts = get_model_state_dict(*model);                  // DTensors
//   auto whole = get_model_state_dict(*model, {.full_state_dict = true});
//   set_model_state_dict(*other, whole);     // other ranks, other layouts
//
// What a dictionary holds fits a model in any layout: DTensors are
// redistributed, and a plain tensor is the whole if it has the global shape,
// and this rank's part if it has that of the part.
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

/// Options of the functions below.
/// Python: torch.distributed.checkpoint.state_dict.StateDictOptions.
struct StateDictOptions {
  /// Plain tensors of the global shape, on every rank: what torch::save takes.
  /// All ranks call it.
  bool full_state_dict = false;
  /// Plain tensors too, each this rank's part, for a file of each rank. (Ours.)
  bool local_parts = false;
  /// On the CPU. Together with full_state_dict only rank 0 gets them, and the
  /// others an empty dictionary.
  bool cpu_offload = false;
  /// Leaves out parameters that require no gradient.
  bool ignore_frozen_params = false;
  /// What is set has every name of the model, and no other.
  bool strict = true;
  /// Rank 0 alone has a (full) dictionary, the others an empty one.
  bool broadcast_from_rank0 = false;
};

/// Parameters and buffers by full name; a tensor that several modules share
/// under each of its names. Without options DTensors where the
/// model has DTensors; they share its memory.
/// Throws ValueError for full_state_dict together with local_parts.
DTENSOR_API StateDict get_model_state_dict(
    const torch::nn::Module& module,
    const StateDictOptions& options = {});

/// Copies the values of `state` to the module's tensors, whose layouts stay.
/// Throws ValueError, and changes nothing: one error that lists all names that
/// are missing, that the module does not have (both if strict), and whose
/// tensors have another shape. A tensor that several modules share may be given
/// under any of its names.
DTENSOR_API void set_model_state_dict(
    torch::nn::Module& module,
    const StateDict& state,
    const StateDictOptions& options = {});

/// What the optimizer keeps of the module's parameters, as
/// "state.w1.weight.exp_avg", and all options of their groups, as
/// "param_groups.w1.weight.lr"; numbers and flags are tensors without
/// dimensions, "betas" is one of two numbers. LBFGS has vectors of all of its
/// parameters, in their order, under the first of them: "state.w1.weight.d",
/// "state.w1.weight.old_dirs.0"; "line_search_fn" is a flag.
/// Throws NotImplementedError for an optimizer other than SGD, Adam, AdamW,
/// Adagrad, RMSprop and LBFGS, ValueError for a parameter that is not the
/// module's.
DTENSOR_API StateDict get_optimizer_state_dict(
    const torch::nn::Module& module,
    const torch::optim::Optimizer& optimizer,
    const StateDictOptions& options = {});

/// The other way: each tensor gets the layout of its parameter, a vector of all
/// is replicated. Options take the place of those of the group that the
/// parameter is in; what `state` does not have stays. Throws as the two above,
/// and ValueError where parameters of one group have different options. Changes
/// nothing then.
DTENSOR_API void set_optimizer_state_dict(
    const torch::nn::Module& module,
    torch::optim::Optimizer& optimizer,
    const StateDict& state,
    const StateDictOptions& options = {});

} // namespace dtensor
