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

#include <cstdint>
#include <memory>
#include <optional>

namespace dtensor::detail {

/// Which values a parameter has, and whether they are learned.
struct ParameterState {
  const void* data = nullptr;
  uint64_t version = 0;
  uint32_t writes = 0;   // those by `data()`, too
  uint64_t replaced = 0; // how often its data was exchanged
  bool requires_grad = false;
  friend bool operator==(const ParameterState&, const ParameterState&) =
      default;
};

class WholeSource : public Rider {
 public:
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
  /// That of the parameter; nothing unless follows_parameter().
  virtual ParameterState state() const = 0;
  /// True if the tensor has the parameter's memory: it is the parameter, or a
  /// view of it.
  virtual bool follows_parameter() const = 0;
  /// Whether the tensor was computed from the parameter, and one of them
  /// written since: then it is a DTensor as any other.
  virtual bool is_lost() const {
    return false;
  }
  /// An operator writes to the tensor's parts.
  virtual void note_write() = 0;
  /// The tensor is about to take over the data of another one (set_data), as
  /// Module::to() has it. Whether this stays its source; throws where it has to
  /// and cannot.
  virtual bool stays_with(const at::Tensor& data) = 0;
};

/// What a DTensor has; null for most.
inline std::shared_ptr<WholeSource> held_source_of(const at::Tensor& t) {
  return std::static_pointer_cast<WholeSource>(meta_of(t).whole_source);
}

/// Source of a parameter, or of what operators made of parameters alone; null
/// for all others.
inline WholeSource* whole_source_of(const at::Tensor& t) {
  auto* source = is_dtensor(t)
      ? static_cast<WholeSource*>(meta_of(t).whole_source.get())
      : nullptr;
  return source == nullptr || source->is_lost() ? nullptr : source;
}

} // namespace dtensor::detail
