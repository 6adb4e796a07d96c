// SPDX-License-Identifier: BSD-3-Clause
// Calls of operators in a file: written by the recorder inside Python, read by
// the net. Strides, wrapped numbers and requires_grad survive.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

namespace dtensor::nets {

struct Sample {
  std::string name;     // "aten::add"
  std::string overload; // "Tensor"
  torch::jit::Stack arguments;

  std::string operator_name() const {
    return overload.empty() ? name : name + "." + overload;
  }
};

/// The call in bytes; nothing if it holds what the net has no use for: sparse,
/// quantized or meta tensors, objects, more than `max_elements` in a tensor.
std::optional<std::string> to_bytes(
    const std::string& name,
    const std::string& overload,
    c10::ArrayRef<const c10::IValue> arguments,
    int64_t max_elements);

/// What to_bytes() says of the call without the values of its floating tensors:
/// calls of one signature test the same.
std::string signature_of(
    const std::string& name,
    const std::string& overload,
    c10::ArrayRef<const c10::IValue> arguments);

void append_to_file(std::ostream& file, const std::string& bytes);

/// All samples of a file whose operators exist.
std::vector<Sample> read_samples(const std::string& path);

} // namespace dtensor::nets
