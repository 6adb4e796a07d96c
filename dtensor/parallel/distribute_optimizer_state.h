// SPDX-License-Identifier: BSD-3-Clause
// distribute_optimizer_state: shards the state of an optimizer that took steps
// before its parameters became DTensors.
//
//   torch::optim::AdamW optimizer(model->parameters());
//   ...                                           // steps of the plain model
//   fully_shard(*model, {.mesh = mesh["dp"]});
//   distribute_optimizer_state(optimizer);        // training continues
#pragma once

#include <dtensor/api.h>

namespace torch::optim {
class Optimizer;
}

namespace dtensor {

/// Gives the optimizer's state of each parameter the layout of the parameter:
/// each rank keeps its shard of momenta and averages that were full tensors, or
/// in the parameter's former layout. State that has the layout already, and
/// state of plain parameters, is unchanged. Call it after parallelize_module,
/// distribute_module, distribute_parameter and fully_shard. It communicates
/// nothing, so ranks may call it independently. The optimizer's parameters
/// stay: they are the DTensors.
///
/// LBFGS's vectors over all parameters are replicated, as LBFGS creates them.
/// The call is not needed for an optimizer that is made after the layouts, or
/// that has no state yet (Adagrad has state from the start).
///
/// Throws ValueError, and changes nothing, for state with another shape than
/// its parameter, and for state of which this rank lacks values that the new
/// layout requires. Throws NotImplementedError for an optimizer other than SGD,
/// Adam, AdamW, Adagrad, RMSprop and LBFGS. (Not in Python, where optimizers
/// are recreated.)
DTENSOR_API void distribute_optimizer_state(torch::optim::Optimizer& optimizer);

} // namespace dtensor
