// SPDX-License-Identifier: BSD-3-Clause
// Members of torch::nn modules that hold parameters. forward() reads the
// member; all other code reads the tensor registered under its name.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/ordered_dict.h>

#include <string>

namespace torch::nn {
class Module;
}

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

} // namespace dtensor::detail
