// SPDX-License-Identifier: BSD-3-Clause
// tie_weights(): two modules share one parameter, as the embedding and the head
// of a language model do.
//
//   tie_weights(*model->head, *model->embedding);
//   torch::optim::AdamW optimizer(unique_parameters(*model), 1e-3);
//
// An assignment, head->weight = embedding->weight, changes the member alone.
// The module keeps its first weight registered, and optimizers, state
// dictionaries and files hold that tensor. Functions of this library that take
// a module throw RuntimeError then.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/api.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor {

/// Makes the parameter "weight" of `source` that of `module`, too: the
/// registered parameter and the member that forward() reads are the same tensor
/// in both. Tie modules before fully_shard, replicate and the optimizer; styles
/// may come before or after. clone() of LibTorch copies a shared parameter once
/// for each module, so tie the clone again.
/// Throws ValueError if either has no weight or the sizes differ,
/// NotImplementedError if `module` is not a module of torch::nn (its member is
/// not known: use tie_parameter), RuntimeError if a member of either is not its
/// registered parameter.
/// Python: lm_head.weight = embedding.weight.
DTENSOR_API void tie_weights(
    torch::nn::Module& module,
    const torch::nn::Module& source);

/// Makes `parameter` the parameter `name` of `module`, a module of torch::nn:
/// registered, and in the member of that name. An undefined tensor removes the
/// parameter, as the bias of a Linear. Throws ValueError if the module has no
/// such parameter or the sizes differ, NotImplementedError as above.
DTENSOR_API void tie_parameter(
    torch::nn::Module& module,
    const std::string& name,
    const at::Tensor& parameter);

/// The same for a module of the program: `member` is its variable for that
/// parameter.
///
///   tie_parameter(*norm, "scale", norm->scale, other->scale);
DTENSOR_API void tie_parameter(
    torch::nn::Module& module,
    const std::string& name,
    at::Tensor& member,
    const at::Tensor& parameter);

/// Returns the parameters of a module, a shared one once, in the order of
/// module.parameters(), which has a shared one once for each module. An
/// optimizer steps what it gets twice twice.
/// Python: torch.nn.Module.parameters.
DTENSOR_API std::vector<at::Tensor> unique_parameters(
    const torch::nn::Module& module);

} // namespace dtensor
