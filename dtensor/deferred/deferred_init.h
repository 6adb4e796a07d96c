// SPDX-License-Identifier: BSD-3-Clause
// Deferred initialization: models are constructed without allocating memory.
//
//   Llama model{nullptr};
//   {
//     DeferredInit scope;
//     model = Llama(config);                    // nothing is allocated
//   }
//   parallelize_module(*model, mesh, plan);     // layouts of the parameters
//   materialize(*model);                        // computes the local shards
//
// Inside the scope every operator that creates a tensor creates a meta tensor,
// and the operators on that tensor are recorded. The record includes
// constructors and initializers of torch::nn, and all that a module's
// constructor computes. materialize() replays these operators on tensors that
// are sharded like the model. Random numbers of DTensors depend on global
// indices, so a parallelized model gets the same values on any number of ranks.
// A model without DTensors gets the values that it would have without the
// scope.
//
// load_weights() and set_model_state_dict() allocate the tensors that they
// fill, so loaded weights are never initialized first. A later materialize()
// initializes the remaining tensors, such as tables that are not in the file.
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

/// Scope in which this thread defers initialization. Tensors made before the
/// scope are unaffected, and operators on them alone run eagerly. Operators
/// that need the values of deferred tensors (item(), nonzero()) compute the
/// values and return real tensors. Until an operator uses a new tensor of up to
/// 16 MB, its memory can be written through data_ptr(), as torch::tensor({1,
/// 2}) does. LibTorch throws for any other use of data_ptr().
class DTENSOR_API DeferredInit {
 public:
  DeferredInit();
  ~DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

 private:
  bool outer_;
};

/// Returns true if `t` was created in a DeferredInit scope, or distributed from
/// such a tensor, and is still on the meta device.
DTENSOR_API bool is_deferred(const at::Tensor& t);

/// Materializes the module's parameters and buffers that are on the meta
/// device, in place, so optimizers, hooks and styles that refer to them stay
/// valid. A DTensor keeps its layout, and only this rank's local shard is
/// allocated. If an operator cannot compute on shards, its tensors are
/// replicated temporarily. All ranks of the model's meshes must call it.
/// Tensors that are already materialized are unchanged. Throws ValueError, and
/// changes nothing, if meta tensors were created outside a scope; the error
/// lists their names. Throws RuntimeError inside a scope, and if a tensor from
/// outside the scope was written to after the scope used it.
DTENSOR_API void materialize(torch::nn::Module& module);
/// The overload for tensors that are not registered in a module.
DTENSOR_API void materialize(c10::ArrayRef<at::Tensor> tensors);

} // namespace dtensor
