// SPDX-License-Identifier: BSD-3-Clause
// Programs that Python exports for the tests, and what it computes with them.
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

namespace dtensor::test_program {

/// One call in Python: what went in, what came out, gradients of the sum of all
/// outputs by parameter, buffers afterwards.
struct PythonRun {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::map<std::string, at::Tensor> gradients;
  std::map<std::string, at::Tensor> buffers;
};

/// Where export_models.py wrote NAME.pt2; Python is called once.
std::string exported(const std::string& name);

/// What torch.save() wrote there.
c10::IValue unpickled(const std::string& path);
/// Of a list of tensors.
std::vector<at::Tensor> tensors_of(const c10::IValue& list);

std::vector<PythonRun> python_runs(const std::string& name);

} // namespace dtensor::test_program
