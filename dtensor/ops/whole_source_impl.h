// SPDX-License-Identifier: BSD-3-Clause
// WholeSource: who has the whole of a parameter that is kept in parts. Modules
// compute with the whole (data_parallel/fully_shard.h), which is theirs for a
// while; what optimizers and state dictionaries see is the DTensor.
//
// data_parallel/ implements it; ops/asked_first.cpp calls it.
#pragma once

#include <ATen/core/Tensor.h>
#include <dtensor/tensor/is_dtensor.h>
#include <dtensor/tensor/meta_impl.h>

#include <memory>
#include <optional>

namespace dtensor::detail {

class WholeSource {
 public:
  virtual ~WholeSource() = default;
  /// Whether every operator is to get the whole, as while the module computes,
  /// and not only one beside another operand that is no part of the parameter's
  /// mesh.
  virtual bool is_open() const = 0;
  /// The whole, differentiable, for an operator that gives it back. Gathers it
  /// if need be.
  virtual at::Tensor take() = 0;
  /// What the operator made of it; nothing where it threw.
  virtual void give_back(at::TensorList results) = 0;
  /// That of the operator's other operands, if they are to be cast.
  virtual std::optional<at::ScalarType> operand_dtype() const = 0;
};

/// That of a parameter; null for all other tensors.
inline WholeSource* whole_source_of(const at::Tensor& t) {
  return is_dtensor(t) ? meta_of(t).whole_source.get() : nullptr;
}

} // namespace dtensor::detail
