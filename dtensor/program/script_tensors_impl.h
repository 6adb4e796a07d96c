// SPDX-License-Identifier: BSD-3-Clause
// Tensors of a script that is being read. Each tensor that the script holds or
// is given is represented by a stand-in without data, which has a slot in the
// graph.
#pragma once

#include <dtensor/program/module_tree_impl.h>
#include <dtensor/program/program_state_impl.h>

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace dtensor::detail {

/// Calls `use` with each tensor of a tensor, list, tuple or dictionary.
void visit_tensors_in(
    const c10::IValue& value,
    const std::function<void(const at::Tensor&)>& use);

class ScriptTensors {
 public:
  /// Adds to the graph and the inputs of `state`, which must outlive this
  /// object.
  explicit ScriptTensors(ProgramState& state) : state_(state) {}

  /// Adds a tensor that the script holds, possibly under several names. Returns
  /// its stand-in.
  at::Tensor add_held(const NamedTensor& held);
  /// Adds an argument of forward(), including tensors in lists, tuples and
  /// dictionaries. Returns the value with stand-ins.
  c10::IValue add_given(const std::string& name, const c10::IValue& value);

  /// Returns true for a stand-in and for a tensor that has one.
  bool is_read(const at::Tensor& t) const;
  /// Returns the value with stand-ins for its tensors. Tensors without a slot
  /// become constants of the graph.
  c10::IValue described(const c10::IValue& value);

  /// Returns the latest slot of a stand-in or of the result of a call.
  Slot slot_of(const at::Tensor& t) const {
    return slots_.at(t.unsafeGetTensorImpl());
  }
  /// Creates a slot for a result of a call, or for a tensor that a call wrote.
  Slot define(const at::Tensor& t);
  /// Returns all slots of a value's tensors.
  std::vector<Slot> slots_in(const c10::IValue& value) const;

 private:
  at::Tensor add(const at::Tensor& t, InputKind kind, const std::string& name);
  at::Tensor describe(const at::Tensor& t);
  const at::Tensor* find(const at::Tensor& t) const;

  ProgramState& state_;
  std::unordered_map<const void*, at::Tensor> standing_; // by original
  std::unordered_map<const void*, Slot> slots_;
  std::vector<at::Tensor> alive_; // keeps addresses unique
};

/// Returns the operand for an argument of a call. All its tensors must have
/// slots.
Operand operand_of(const c10::IValue& value, const ScriptTensors& tensors);

} // namespace dtensor::detail
