// SPDX-License-Identifier: BSD-3-Clause
// Operators that randomized tests call with drawn operands and arguments.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace dtensor::randomized {

using Tensors = std::vector<at::Tensor>;

/// Returns the defined tensors in the values, with lists flattened.
Tensors tensors_in(c10::ArrayRef<c10::IValue> values);

/// Returns the operator "add.Tensor". Throws if it does not exist.
c10::OperatorHandle find_operator(const std::string& op);

/// Returns every operator with a rule, and its in-place form, if the results
/// are a function of the arguments' values. If `only` is not empty, returns the
/// overloads of the operators named there.
std::vector<std::string> drawable_operators(
    const std::vector<std::string>& only);

} // namespace dtensor::randomized
