// SPDX-License-Identifier: BSD-3-Clause
// The tensors of a script that is read: what it holds and is given gets one
// without data that stands for it, and each of these a place in the graph.
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
  /// Adds to the graph and the inputs of `state`, which outlives it.
  explicit ScriptTensors(ProgramState& state) : state_(state) {}

  /// One that the script holds, which names may share. Returns what stands for
  /// it.
  at::Tensor add_held(const NamedTensor& held);
  /// One that forward() is given, also within lists, tuples and dictionaries.
  c10::IValue add_given(const std::string& name, const c10::IValue& value);

  /// Whether it stands for one, or one stands for it.
  bool is_read(const at::Tensor& t) const;
  /// With what stands for its tensors, which get a place as constants of the
  /// graph if they have none.
  c10::IValue described(const c10::IValue& value);

  /// The place of one that stands for another, or that a call made: the latest.
  Slot slot_of(const at::Tensor& t) const {
    return slots_.at(t.unsafeGetTensorImpl());
  }
  /// A place for what a call made, or wrote.
  Slot define(const at::Tensor& t);
  /// All places of a value's tensors.
  std::vector<Slot> slots_in(const c10::IValue& value) const;

 private:
  at::Tensor add(const at::Tensor& t, InputKind kind, const std::string& name);
  at::Tensor describe(const at::Tensor& t);
  const at::Tensor* find(const at::Tensor& t) const;

  ProgramState& state_;
  std::unordered_map<const void*, at::Tensor> standing_; // by what for
  std::unordered_map<const void*, Slot> slots_;
  std::vector<at::Tensor> alive_; // so that no two have one address
};

/// An argument of a call, whose tensors have places.
Operand operand_of(const c10::IValue& value, const ScriptTensors& tensors);

} // namespace dtensor::detail
