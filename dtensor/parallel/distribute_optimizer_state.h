// SPDX-License-Identifier: BSD-3-Clause
// distribute_optimizer_state: for an optimizer that was made, and has stepped,
// before its parameters became DTensors.
//
//   torch::optim::AdamW optimizer(model->parameters());
//   ...                                           // steps of the plain model
//   fully_shard(*model, {.mesh = mesh["dp"]});
//   distribute_optimizer_state(optimizer);        // it goes on where it was
#pragma once

#include <dtensor/api.h>

namespace torch::optim {
class Optimizer;
}

namespace dtensor {

/// Gives what the optimizer keeps of each parameter the parameter's layout:
/// each rank keeps its part of momenta and averages that were whole, or that
/// were cut as the parameter was before. What has its parameter's layout stays,
/// and so does that of plain parameters. To be called after
/// parallelize_module, distribute_module, distribute_parameter and fully_shard,
/// by each rank for itself: nothing is communicated. The optimizer keeps its
/// parameters, which have become DTensors themselves.
///
/// Of LBFGS the vectors over all parameters are replicated, as it makes them.
/// An optimizer that is made after the layouts needs no call, nor one that
/// keeps nothing yet (Adagrad keeps sums from its making on).
///
/// Throws ValueError, and changes nothing, for a state of another shape than
/// its parameter, and for one of which this rank has not all that the
/// parameter's layout gives it. NotImplementedError for an optimizer other than
/// SGD, Adam, AdamW, Adagrad, RMSprop and LBFGS. (Ours: Python's optimizers
/// are made anew.)
DTENSOR_API void distribute_optimizer_state(torch::optim::Optimizer& optimizer);

} // namespace dtensor
