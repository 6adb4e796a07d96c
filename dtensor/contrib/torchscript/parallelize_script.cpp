// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/contrib/torchscript/parallelize_script.h>

#include <dtensor/comm/mesh_scope.h>
#include <dtensor/contrib/torchscript/read_script_impl.h>
#include <dtensor/contrib/torchscript/script_modules_impl.h>
#include <dtensor/error.h>
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/program/tp_transform.h>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/nn/module.h>

namespace dtensor {

std::shared_ptr<torch::nn::Module> parallelize_script(
    const torch::jit::Module& script,
    const DeviceMesh& given_mesh,
    const ParallelizePlan& plan) {
  const auto mesh = given_mesh.defined() ? given_mesh : get_current_mesh();
  DTENSOR_CHECK_VALUE(
      mesh.defined(),
      "[parallelize_script] no mesh was passed and no mesh is current. Pass a "
      "mesh from init_device_mesh, or set the current one with MeshScope.");
  const auto forward = torchscript::inlined_forward(script);
  auto modules =
      module_tree(torchscript::script_tensors(script, forward.get()));
  if (!plan.empty()) {
    parallelize_module(*modules, mesh, plan, {.keep_dtensors = true});
  }
  distribute_module(*modules, mesh);
  return modules;
}

std::vector<PlanEntryText> find_tp_plan(
    const torch::jit::Module& script,
    const std::vector<c10::IValue>& sample_inputs) {
  const auto [graph, modules] =
      torchscript::graph_of_script(script, sample_inputs);
  return find_tp_plan(graph, *modules);
}

std::vector<PlanEntryText> tp_transform(
    torch::jit::Module& script,
    const DeviceMesh& mesh,
    const std::vector<c10::IValue>& sample_inputs) {
  auto plan = find_tp_plan(script, sample_inputs);
  parallelize_script(script, mesh, make_plan(plan));
  return plan;
}

} // namespace dtensor
