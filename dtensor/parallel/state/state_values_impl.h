// SPDX-License-Identifier: BSD-3-Clause
// Conversion of single tensors of a state dictionary, from a model and to a
// model, and the names of tensors that several modules share.
#pragma once

#include <dtensor/api.h>
#include <dtensor/parallel/state_dict.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Returns the module's own tensors: parameters, then buffers, without
/// undefined ones. Throws RuntimeError if a member of a module is not the
/// tensor registered under its name. `where` begins the message.
DTENSOR_INTERNAL_API StateDict tensors_of(
    const char* where,
    const torch::nn::Module& module,
    bool frozen_too = true);

/// Throws ValueError for options that exclude each other.
void check_options(const StateDictOptions& options, const char* where);

/// Converts `value` as the options request.
at::Tensor state_value(
    const at::Tensor& value,
    const StateDictOptions& options);

/// True if this rank gets the dictionary.
bool gets_state(const StateDictOptions& options);

/// True if `source` can be loaded into `target`: it has the global shape or the
/// local shape.
bool fits_state(const at::Tensor& target, const at::Tensor& source);

/// Returns `source`, for which fits_state() is true, in the layout, dtype and
/// device of `target`.
at::Tensor redistribute_like(
    const at::Tensor& target,
    const at::Tensor& source);

/// Returns `source` replicated on the mesh of `target`, in its dtype.
at::Tensor replicate_like(const at::Tensor& target, const at::Tensor& source);

/// Performs the checks of set_optimizer_state_dict(), and returns a function
/// that sets the state. With `takes`, the optimizer keeps the given tensor
/// instead of a copy if the tensor already has the layout of its parameter.
DTENSOR_INTERNAL_API std::function<void()> prepare_optimizer_state_dict(
    const torch::nn::Module& module,
    torch::optim::Optimizer& optimizer,
    const StateDict& state,
    const StateDictOptions& options,
    bool takes);

/// Returns "f32[4, 2]", or the layout of a DTensor.
DTENSOR_INTERNAL_API std::string state_text(const at::Tensor& value);

/// Broadcasts the dictionary of rank 0. Every rank must call this function.
/// Throws ValueError on all ranks if rank 0 lacks the full values of a tensor.
/// `where` begins the message.
StateDict broadcast_state(const StateDict& state, const char* where);

/// Appends "<what><names>" to a list of problems, unless `names` is empty.
DTENSOR_INTERNAL_API void add_names(
    std::string& text,
    const char* what,
    const std::vector<std::string>& names);

/// Collects all problems of a dictionary for one error.
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
  /// Throws ValueError if there are any problems.
  void check(const char* where) const;

 private:
  std::vector<std::string> missing_;
  std::vector<std::string> unexpected_;
  std::vector<std::string> misshapen_;
};

/// Names of tensors that several modules share. Files store such a tensor once,
/// under its first name, like Python's safetensors.torch.save_model.
class DTENSOR_INTERNAL_API TiedNames {
 public:
  TiedNames() = default;
  explicit TiedNames(const StateDict& tensors);

  /// Map from each further name of a tensor to its first name.
  const std::map<std::string, std::string>& firsts() const {
    return firsts_;
  }
  /// Returns all names of the tensor called `name`, in order; empty if there is
  /// only one name.
  const std::vector<std::string>& names_of(const std::string& name) const;

 private:
  std::map<std::string, std::string> firsts_;
  std::map<std::string, std::vector<std::string>> by_first_;
};

/// True if two tensors of one shape have equal elements; NaN equals NaN.
DTENSOR_INTERNAL_API bool have_same_values(
    const at::Tensor& a,
    const at::Tensor& b);

} // namespace dtensor::detail
