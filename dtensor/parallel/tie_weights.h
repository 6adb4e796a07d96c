// SPDX-License-Identifier: BSD-3-Clause
// tie_weights(): makes two modules share one parameter, such as the embedding
// and the head of a language model.
//
//   tie_weights(*model->head, *model->embedding);
//   torch::optim::AdamW optimizer(unique_parameters(*model), 1e-3);
//
// An assignment, head->weight = embedding->weight, only changes the member. The
// head's own weight stays registered, and optimizers, state dictionaries and
// files would use that weight. Functions of this library that take a module
// throw RuntimeError for such a module.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

/// Makes `module` share the parameter "weight" of `source`: in both modules,
/// the registered parameter and the member that forward() reads become the same
/// tensor. Tie modules before fully_shard, replicate and the optimizer; styles
/// may come before or after. LibTorch's clone() copies a shared parameter once
/// per module, so tie the clone again.
/// Throws ValueError if either module has no weight or the sizes differ, and
/// RuntimeError if a member of either module is not its registered parameter.
/// Throws NotImplementedError if `module` is not a module of torch::nn: its
/// member is unknown, so use tie_parameter().
/// Python: lm_head.weight = embedding.weight.
DTENSOR_API void tie_weights(
    torch::nn::Module& module,
    const torch::nn::Module& source);

/// Makes `parameter` the parameter `name` of `module`, a module of torch::nn.
/// Sets both the registered parameter and the member of that name. An undefined
/// tensor removes the parameter, such as the bias of a Linear. Throws
/// ValueError if the module has no such parameter or the sizes differ, and
/// NotImplementedError like tie_weights().
DTENSOR_API void tie_parameter(
    torch::nn::Module& module,
    const std::string& name,
    const at::Tensor& parameter);

/// Overload for a custom module, whose member variable `member` holds the
/// parameter.
///
///   tie_parameter(*norm, "scale", norm->scale, other->scale);
DTENSOR_API void tie_parameter(
    torch::nn::Module& module,
    const std::string& name,
    at::Tensor& member,
    const at::Tensor& parameter);

/// Returns the parameters of a module in the order of module.parameters(), but
/// each shared parameter only once. An optimizer would step a duplicate twice.
/// Python: torch.nn.Module.parameters.
DTENSOR_API std::vector<at::Tensor> unique_parameters(
    const torch::nn::Module& module);

} // namespace dtensor
