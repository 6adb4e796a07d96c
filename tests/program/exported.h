// SPDX-License-Identifier: BSD-3-Clause
// Programs that Python exports for the tests, and Python's results with them.
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

namespace dtensor::test_program {

/// One call in Python: inputs, outputs, gradients of the sum of all outputs by
/// parameter, and buffers after the call.
struct PythonRun {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> buffers;
};

/// Returns the path of NAME.pt2, written by export_models.py. Calls Python
/// once.
std::string exported(const std::string& name);

/// Loads a value that torch.save() wrote.
c10::IValue unpickled(const std::string& path);
/// Returns the tensors of a list.
std::vector<at::Tensor> tensors_of(const c10::IValue& list);

std::vector<PythonRun> python_runs(const std::string& name);

} // namespace dtensor::test_program
