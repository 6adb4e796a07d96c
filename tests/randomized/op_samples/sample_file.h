// SPDX-License-Identifier: BSD-3-Clause
// File of operator calls, written by the recorder in Python and read by the
// test. It preserves strides, wrapped numbers and requires_grad.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

namespace dtensor::randomized {

struct Sample {
  std::string name;     // "aten::add"
  std::string overload; // "Tensor"
  torch::jit::Stack arguments;

  std::string operator_name() const {
    return overload.empty() ? name : name + "." + overload;
  }
};

/// Serializes the call. Returns nothing for values that the test cannot use:
/// sparse, quantized or meta tensors, objects, and tensors with more than
/// `max_elements` elements.
std::optional<std::string> to_bytes(
    const std::string& name,
    const std::string& overload,
    c10::ArrayRef<const c10::IValue> arguments,
    int64_t max_elements);

/// Serializes the call without the values of floating-point tensors. Calls with
/// equal signatures test the same code.
std::string signature_of(
    const std::string& name,
    const std::string& overload,
    c10::ArrayRef<const c10::IValue> arguments);

void append_to_file(std::ostream& file, const std::string& bytes);

/// Returns all samples of a file with existing operators.
std::vector<Sample> read_samples(const std::string& path);

} // namespace dtensor::randomized
