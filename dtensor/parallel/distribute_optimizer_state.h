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

/// Gives the optimizer's state of each parameter the layout of the parameter.
/// Each rank keeps its shard of momenta and averages, which were full tensors
/// or had the parameter's former layout. State that already has the layout, and
/// state of plain parameters, is unchanged. Call this function after
/// parallelize_module, distribute_module, distribute_parameter and fully_shard.
/// The call does not communicate, so ranks may make it independently. The
/// optimizer already holds the DTensors, because these functions turn
/// parameters into DTensors in place.
///
/// Vectors of LBFGS, which concatenate all parameters, are replicated. The call
/// is not needed for an optimizer that is created after its parameters were
/// distributed, or that has no state yet (Adagrad has state from the start).
///
/// Throws ValueError, and changes nothing, if the shapes of a parameter and its
/// state differ, or if this rank lacks values of the state that the new layout
/// requires. Throws NotImplementedError for an optimizer other than SGD, Adam,
/// AdamW, Adagrad, RMSprop and LBFGS. (Not in Python, where a program creates
/// the optimizer again.)
DTENSOR_API void distribute_optimizer_state(torch::optim::Optimizer& optimizer);

} // namespace dtensor
