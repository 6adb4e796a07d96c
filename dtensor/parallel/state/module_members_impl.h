// SPDX-License-Identifier: BSD-3-Clause
// Parameters of a module: the members of torch::nn modules that hold them,
// their names, and the names of an optimizer's parameters. forward() reads the
// member; all other code reads the tensor registered under its name.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <dtensor/error.h>
#include <dtensor/parallel/state/state_values_impl.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace dtensor::detail {

using TensorDict = torch::OrderedDict<std::string, at::Tensor>;
using MemberFn = c10::function_ref<void(const char* name, at::Tensor& member)>;

/// Calls fn(name, member) for each member of `module` that holds a parameter or
/// a buffer. Returns false if `module` is not a torch::nn module with such
/// members.
bool for_each_member(torch::nn::Module& module, MemberFn fn);

/// Returns the parameters that are registered in the module itself, undefined
/// ones included.
TensorDict& registered_parameters(torch::nn::Module& module);

/// Throws RuntimeError, with the module's name, if a member of `module` or of a
/// submodule is not the tensor registered under its name. `where` begins the
/// message.
void check_members(const char* where, const torch::nn::Module& module);

using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;
using ParameterNames = std::unordered_map<const void*, std::string>;

/// Returns the parameters of a module with their full names, in the order of
/// module.parameters(). A shared parameter appears once, under its first name.
inline NamedParameters unique_parameters(const torch::nn::Module& module) {
  NamedParameters found;
  std::unordered_set<const void*> known;
  for (const auto& item : module.named_parameters()) {
    if (known.insert(item.value().unsafeGetTensorImpl()).second) {
      found.emplace_back(item.key(), item.value());
    }
  }
  return found;
}

/// Returns the first name of each parameter.
inline ParameterNames names_of(const torch::nn::Module& module) {
  ParameterNames names;
  for (const auto& [name, parameter] : unique_parameters(module)) {
    names.emplace(parameter.unsafeGetTensorImpl(), name);
  }
  return names;
}

/// Returns the name of a parameter. Throws ValueError if the parameter is not
/// in `names`.
inline const std::string& name_of(
    const ParameterNames& names,
    const at::Tensor& parameter,
    const char* where) {
  const auto found = names.find(parameter.unsafeGetTensorImpl());
  DTENSOR_CHECK_VALUE(
      found != names.end(),
      "[{}] the optimizer has a parameter, {}, that is not in the module. "
      "Pass the module that the optimizer was made for.",
      where,
      state_text(parameter));
  return found->second;
}

/// Calls fn(name, parameter, group) for each parameter, in the optimizer's
/// order. Throws ValueError for a parameter that the optimizer has twice.
template <class AnOptimizer, class Fn>
void for_each_parameter(
    const torch::nn::Module& module,
    AnOptimizer& optimizer,
    const char* where,
    const Fn& fn) {
  check_members(where, module);
  const auto names = names_of(module);
  std::unordered_set<const void*> known;
  for (auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      const auto& name = name_of(names, parameter, where);
      DTENSOR_CHECK_VALUE(
          known.insert(parameter.unsafeGetTensorImpl()).second,
          "[{}] the optimizer has {} twice, because several modules share it, "
          "and would step it twice. Make the optimizer from "
          "unique_parameters(module).",
          where,
          name);
      fn(name, parameter, group);
    }
  }
}

} // namespace dtensor::detail
