// SPDX-License-Identifier: BSD-3-Clause
// An operator that LibTorch is about to call, as text.
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

/// Of a callback that gets the inputs. Tensors are the operands; of a list the
/// first and how many there are.
OperatorText text_of(const at::RecordFunction& call);

/// "f32[8, 6]", of a DTensor its global shape.
std::string shape_text(const at::Tensor& tensor);

} // namespace dtensor::detail
