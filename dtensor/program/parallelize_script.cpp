// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/program/parallelize_script.h>

#include <dtensor/comm/mesh_scope.h>
#include <dtensor/parallel/distribute_module.h>
#include <dtensor/program/module_tree_impl.h>

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <string_view>

namespace dtensor {
namespace {

using detail::Role;

// "__torch__.torch.nn.modules.linear.Linear", with a mangled name in between
// where there are several: "linear.___torch_mangle_3.Linear".
Role role_of(const torch::jit::Module& module) {
  const auto name = module.type()->name();
  if (!name) {
    return Role::kNone;
  }
  const std::string_view class_name = name->name();
  return class_name == "Linear"   ? Role::kLinear
      : class_name == "Embedding" ? Role::kEmbedding
      : class_name == "LayerNorm" ? Role::kLayerNorm
                                  : Role::kNone;
}

std::vector<detail::NamedTensor> tensors_of(const torch::jit::Module& script) {
  std::vector<detail::NamedTensor> tensors;
  for (const auto& module : script.named_modules()) {
    const auto prefix = module.name.empty() ? "" : module.name + ".";
    const auto role = role_of(module.value);
    for (const auto& p : module.value.named_parameters(/*recurse=*/false)) {
      tensors.push_back({prefix + p.name, p.value, false, role});
    }
    for (const auto& b : module.value.named_buffers(/*recurse=*/false)) {
      tensors.push_back({prefix + b.name, b.value, true, Role::kNone});
    }
  }
  return tensors;
}

} // namespace

std::shared_ptr<torch::nn::Module> parallelize_script(
    const torch::jit::Module& script,
    const DeviceMesh& given_mesh,
    const ParallelizePlan& plan) {
  const auto mesh = detail::mesh_or_current(given_mesh, "parallelize_script");
  auto modules = detail::module_tree(tensors_of(script));
  if (!plan.empty()) {
    parallelize_module(*modules, mesh, plan, {.keep_dtensors = true});
  }
  distribute_module(*modules, mesh);
  return modules;
}

} // namespace dtensor
