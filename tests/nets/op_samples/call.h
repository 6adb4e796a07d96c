// SPDX-License-Identifier: BSD-3-Clause
// One call of an operator that the net tries: a sample, or the in-place or
// out= form of one.
#pragma once

#include "sample_file.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace dtensor::nets {

struct Call {
  c10::OperatorHandle op;
  torch::jit::Stack arguments; // those of the functional form for out=
  bool is_out_form = false;
  size_t number = 0; // of this operator's calls, from 0

  std::string name() const; // "aten::add.out"
};

using Tensors = std::vector<at::Tensor>;

/// The defined tensors among the values, lists flattened.
Tensors tensors_in(c10::ArrayRef<c10::IValue> values);

/// The values with each of their tensors replaced by map(tensor, index).
torch::jit::Stack with_tensors(
    c10::ArrayRef<c10::IValue> values,
    const std::function<at::Tensor(const at::Tensor&, size_t)>& map);

/// The samples and the forms that follow from them, operator by operator.
std::map<std::string, std::vector<Call>> calls_of(
    const std::vector<Sample>& samples);

/// For an out= form: its arguments with outs as the plain operator returns
/// them. Others unchanged. Throws what the plain operator throws.
void add_outs(Call& call);

/// What is compared of an operator.
enum class Compared : uint8_t {
  kAll,
  kShapes,  // its values are random or not initialised
  kNothing, // it makes no sense on a DTensor
};

Compared compared_of(const c10::OperatorHandle& op);

/// Whether it draws random numbers; without a rule it refuses in every layout.
bool is_random(const c10::OperatorHandle& op);

} // namespace dtensor::nets
