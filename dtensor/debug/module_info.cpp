// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/debug/module_info_impl.h>

#include <dtensor/parallel/plan/module_names_impl.h>
#include <torch/nn/module.h>

#include <string_view>

namespace dtensor::detail {
namespace {

NamedTensors defined_in(
    const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  NamedTensors named;
  for (const auto& item : tensors) {
    if (item.value().defined()) {
      named.emplace_back(item.key(), item.value());
    }
  }
  return named;
}

// Returns the type of a module, without the DTENSOR_MODULE wrapper.
std::string type_of(const torch::nn::Module& module) {
  constexpr std::string_view kHooked = "dtensor::Hooked<";
  const auto& name = module.name();
  return name.starts_with(kHooked) && name.ends_with('>')
      ? name.substr(kHooked.size(), name.size() - kHooked.size() - 1)
      : name;
}

void add_modules(
    std::vector<ModuleInfo>& modules,
    const torch::nn::Module& module,
    const std::string& name,
    size_t depth) {
  modules.push_back(
      {name,
       type_of(module),
       depth,
       defined_in(module.named_parameters(/*recurse=*/false)),
       defined_in(module.named_buffers(/*recurse=*/false)),
       &module});
  for (const auto& child : module.named_children()) {
    if (child.value() != nullptr) {
      add_modules(
          modules, *child.value(), full_name(name, child.key()), depth + 1);
    }
  }
}

} // namespace

std::vector<ModuleInfo> modules_of(const torch::nn::Module& model) {
  std::vector<ModuleInfo> modules;
  add_modules(modules, model, "", 0);
  return modules;
}

} // namespace dtensor::detail
