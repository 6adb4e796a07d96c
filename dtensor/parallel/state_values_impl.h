// SPDX-License-Identifier: BSD-3-Clause
// One tensor of a state dictionary: on its way out of a model, and into one.
#pragma once

#include <dtensor/parallel/state_dict.h>

#include <functional>
#include <string>
#include <vector>

namespace dtensor::detail {

/// The module's own tensors: parameters, then buffers, but for those that are
/// undefined. Throws RuntimeError where a member of a module is not what is
/// registered under its name; `where` begins the message.
StateDict tensors_of(
    const char* where,
    const torch::nn::Module& module,
    bool frozen_too = true);

/// Throws ValueError for options that exclude each other.
void check_options(const StateDictOptions& options, const char* where);

/// `value` as the options want it.
at::Tensor state_value(
    const at::Tensor& value,
    const StateDictOptions& options);

/// Whether this rank gets the dictionary.
bool gets_state(const StateDictOptions& options);

/// Whether `source` is the value of a tensor like `target`: the whole, or this
/// rank's part of it.
bool fits_state(const at::Tensor& target, const at::Tensor& source);

/// `source`, which fits, in the layout of `target`, on its device and in its
/// dtype.
at::Tensor placed_like(const at::Tensor& target, const at::Tensor& source);

/// All of `source` on every rank of the mesh of `target`, in its dtype.
at::Tensor placed_whole(const at::Tensor& target, const at::Tensor& source);

/// set_optimizer_state_dict() in two steps: throws all that it would, and
/// returns what then sets it. With `takes` the optimizer keeps the tensors
/// themselves, where they have the layout of their parameter, and no copies.
std::function<void()> prepare_optimizer_state_dict(
    const torch::nn::Module& module,
    torch::optim::Optimizer& optimizer,
    const StateDict& state,
    const StateDictOptions& options,
    bool takes);

/// "f32[4, 2]", and the layout of a DTensor.
std::string state_text(const at::Tensor& value);

/// The dictionary that rank 0 has, on every rank.
StateDict broadcast_state(const StateDict& state);

/// Adds "<what><names>" to a list of what is wrong; nothing for no names.
void add_names(
    std::string& text,
    const char* what,
    const std::vector<std::string>& names);

/// What is wrong with a dictionary, all of it.
class StateProblems {
 public:
  void is_missing(const std::string& name) {
    missing_.push_back(name);
  }
  void is_unexpected(const std::string& name) {
    unexpected_.push_back(name);
  }
  void has_other_shape(
      const std::string& name,
      const at::Tensor& target,
      const at::Tensor& source) {
    misshapen_.push_back(
        name + " is " + state_text(source) + " for " + state_text(target));
  }
  /// Throws ValueError if anything was.
  void check(const char* where) const;

 private:
  std::vector<std::string> missing_;
  std::vector<std::string> unexpected_;
  std::vector<std::string> misshapen_;
};

} // namespace dtensor::detail
