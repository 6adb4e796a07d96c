// SPDX-License-Identifier: BSD-3-Clause
// UnshardedSource: provides the unsharded value of a sharded parameter. Modules
// compute with the unsharded parameter (data_parallel/fully_shard.h), which
// exists temporarily. Optimizers and state dictionaries use the DTensor.
//
// data_parallel/ implements this interface; ops/unsharded/interceptor.cpp calls
// it.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/meta_impl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace dtensor::detail {

/// Identity and version of a parameter's values, and its requires_grad.
struct ParameterState {
  const void* data = nullptr;
  uint64_t version = 0;
  uint32_t writes = 0;   // including writes through `data()`
  uint64_t replaced = 0; // number of times its data was replaced
  bool requires_grad = false;
  friend bool operator==(const ParameterState&, const ParameterState&) =
      default;
};

class UnshardedSource : public Attachment {
 public:
  /// Returns true if every operator gets the unsharded value, for example while
  /// the module computes. If false, only operators with another operand outside
  /// the parameter's mesh get the unsharded value.
  virtual bool is_open() const = 0;
  /// Returns the unsharded value, differentiable, for an operator. The caller
  /// calls give_back() after the operator. Gathers the parameter if necessary.
  virtual at::Tensor take_unsharded() = 0;
  /// Receives the results of the operator; empty if it threw.
  virtual void give_back(at::TensorList results) = 0;
  /// Returns the dtype to which the operator's other operands are cast, if any.
  virtual std::optional<at::ScalarType> operand_dtype() const = 0;
  /// Returns the state of the parameter; empty unless follows_parameter().
  virtual ParameterState state() const = 0;
  /// Returns true if the tensor is the parameter, or a view of the parameter's
  /// memory.
  virtual bool follows_parameter() const = 0;
  /// Returns true if the tensor was computed from the parameter, and the tensor
  /// or the parameter has been written since. The tensor is then an ordinary
  /// DTensor.
  virtual bool is_lost() const {
    return false;
  }
  /// Records that an operator writes to the tensor's local shard.
  virtual void note_write() = 0;
  /// Called before the tensor takes over the data of another tensor (set_data,
  /// as in Module::to()). Returns true if this object stays the tensor's
  /// source. Throws if the source must stay and cannot.
  virtual bool keeps_source_for(const at::Tensor& data) = 0;
};

/// Returns the source of a parameter, or of a result of operators on parameters
/// alone; null for all other tensors and for lost sources.
inline UnshardedSource* unsharded_source_of(const at::Tensor& t) {
  auto* source = is_dtensor(t)
      ? static_cast<UnshardedSource*>(meta_of(t).unsharded_source.get())
      : nullptr;
  return source == nullptr || source->is_lost() ? nullptr : source;
}

/// Returns the source of a tensor, lost or not; null for most tensors.
inline std::shared_ptr<UnshardedSource> source_if_held(const at::Tensor& t) {
  return is_dtensor(t)
      ? std::static_pointer_cast<UnshardedSource>(meta_of(t).unsharded_source)
      : nullptr;
}

} // namespace dtensor::detail
