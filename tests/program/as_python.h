// SPDX-License-Identifier: BSD-3-Clause
// Comparison of a program's results, gradients and buffers with those of
// Python.
#pragma once

#include "exported.h"

#include <dtensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace dtensor::test_program {

using Tensors = std::vector<at::Tensor>;

inline Tensors tensors_in(const std::vector<c10::IValue>& values) {
  Tensors tensors;
  for (const auto& value : values) {
    if (value.isTensor()) {
      tensors.push_back(value.toTensor());
    }
  }
  return tensors;
}

// Returns the value to differentiate.
inline at::Tensor total_of(const Tensors& outputs) {
  at::Tensor total;
  for (const auto& output : outputs) {
    if (output.is_floating_point()) {
      const auto sum = full_tensor(output).to(at::kDouble).sum();
      total = total.defined() ? total + sum : sum;
    }
  }
  return total;
}

inline void expect_close(
    const at::Tensor& ours,
    const at::Tensor& truth,
    const std::string& what) {
  const auto whole = full_tensor(ours).detach();
  ASSERT_EQ(whole.sizes(), truth.sizes()) << what;
  ASSERT_EQ(whole.scalar_type(), truth.scalar_type()) << what;
  const double tolerance = truth.scalar_type() == at::kDouble ? 1e-12 : 1e-5;
  EXPECT_TRUE(at::allclose(whole, truth, tolerance, tolerance))
      << what << "\n"
      << whole << "\nPython:\n"
      << truth;
}

// Compares all calls of Python with the program, one after the other, including
// gradients.
inline void expect_as_python(
    Program& program,
    const std::vector<PythonRun>& runs) {
  for (const auto& truth : runs) {
    program.module().zero_grad();
    const auto outputs =
        tensors_in(program.run({truth.inputs.begin(), truth.inputs.end()}));
    ASSERT_EQ(outputs.size(), truth.outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      expect_close(outputs[i], truth.outputs[i], c10::str("output ", i));
    }
    if (!truth.gradients.empty()) {
      total_of(outputs).backward();
    }
    const auto parameters = program.module().named_parameters();
    for (const auto& [name, gradient] : truth.gradients) {
      ASSERT_TRUE(parameters.contains(name)) << name;
      const auto mine = parameters[name].grad();
      ASSERT_TRUE(mine.defined()) << name;
      expect_close(mine, gradient, name);
    }
    const auto buffers = program.module().named_buffers();
    for (const auto& [name, value] : truth.buffers) {
      ASSERT_TRUE(buffers.contains(name)) << name;
      expect_close(buffers[name], value, name);
    }
  }
}

} // namespace dtensor::test_program
