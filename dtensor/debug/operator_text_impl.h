// SPDX-License-Identifier: BSD-3-Clause
// The text of an operator call that is about to run.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <string>
#include <vector>

namespace dtensor::detail {

struct OperatorText {
  std::string name;                  // "aten::add.Tensor"
  std::vector<std::string> operands; // "f32[8, 6] S(0)", "f32[8, 6]"
  std::string mesh;                  // "(tp=2)"; "" without DTensors
  bool distributed() const {
    return !mesh.empty();
  }
};

/// Describes a call in a callback that receives inputs. The operands are
/// tensors; a list is shown as its first tensor and its length.
OperatorText text_of(const at::RecordFunction& call);

/// "f32[8, 6]"; the global shape of a DTensor.
std::string shape_text(const at::Tensor& tensor);

} // namespace dtensor::detail
