// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/parallelize_script.h>

#include <dtensor/comm/mesh_scope.h>
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/program/script_modules_impl.h>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/nn/module.h>

namespace dtensor {

std::shared_ptr<torch::nn::Module> parallelize_script(
    const torch::jit::Module& script,
    const DeviceMesh& given_mesh,
    const ParallelizePlan& plan) {
  const auto mesh = detail::mesh_or_current(given_mesh, "parallelize_script");
  const auto forward = detail::inlined_forward(script);
  auto modules =
      detail::module_tree(detail::script_tensors(script, forward.get()));
  if (!plan.empty()) {
    parallelize_module(*modules, mesh, plan, {.keep_dtensors = true});
  }
  distribute_module(*modules, mesh);
  return modules;
}

} // namespace dtensor
