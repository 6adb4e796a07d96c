// SPDX-License-Identifier: BSD-3-Clause
// Models that are described before they exist.
//
//   Llama model{nullptr};
//   {
//     DeferredInit scope;
//     model = Llama(config);                    // nothing is allocated
//   }
//   parallelize_module(*model, mesh, plan);     // layouts of what will be
//   materialize(*model);                        // each rank its parts
//
// Inside of the scope every operator that makes a tensor makes one on the meta
// device, and what is done with it is written down: constructors and
// initialisers of torch::nn, and whatever else a module's constructor computes.
// materialize() does it then, on tensors that are cut as the model is. Random
// numbers of DTensors depend on global indices, so a plan gives the same values
// on any number of ranks; a model without DTensors gets the values that it
// would have had without the scope.
//
// load_weights() and set_model_state_dict() allocate what they fill, so a model
// whose weights come from elsewhere is never initialised; materialize() after
// them does the rest, such as tables that no file has.
//
// Python: torch.device("meta") with Module.to_empty() and reset_parameters();
// torchdistx.deferred_init, materialize_module.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <dtensor/api.h>

namespace torch::nn {
class Module;
}

namespace dtensor {

/// While it lives, this thread defers. Tensors of before the scope are what
/// they are, and operators on them alone give real tensors; so do operators
/// that need the values of deferred ones (item(), nonzero()), which are
/// computed then. Memory of a new tensor of up to 16 MB can be written through
/// its pointer until an operator uses it (torch::tensor({1, 2}) does that); any
/// other use of data_ptr() is LibTorch's error.
class DTENSOR_API DeferredInit {
 public:
  DeferredInit();
  ~DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

 private:
  bool outer_;
};

/// Whether `t` was made in such a scope, or distributed from one that was, and
/// is still on the meta device.
DTENSOR_API bool is_deferred(const at::Tensor& t);

/// Brings the module's parameters and buffers that are on the meta device to
/// life, in place: optimizers, hooks and styles keep them. A DTensor keeps its
/// layout, and no more than this rank's part is allocated, unless an operator
/// cannot be done on parts: then its tensors are whole for as long as it takes.
/// All ranks of the model's meshes call it. What came to life before stays.
/// Throws ValueError, and changes nothing, for tensors on the meta device that
/// were made outside of a scope, all of them by name; RuntimeError where a
/// tensor from outside has been written since the scope used it, and within a
/// scope.
DTENSOR_API void materialize(torch::nn::Module& module);
/// The same of tensors that no module has registered.
DTENSOR_API void materialize(c10::ArrayRef<at::Tensor> tensors);

} // namespace dtensor
