// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/tie_weights.h>

#include <dtensor/error.h>
#include <dtensor/parallel/state/module_members_impl.h>
#include <dtensor/parallel/state/state_values_impl.h>

#include <torch/nn/module.h>

namespace dtensor {
namespace {

constexpr const char* kWeight = "weight";

// Returns the registered parameter `name`, which may be undefined.
at::Tensor& registered(
    const char* where,
    torch::nn::Module& module,
    const std::string& name) {
  auto* const found = detail::registered_parameters(module).find(name);
  DTENSOR_CHECK_VALUE(
      found != nullptr,
      "[{}] the {} has no parameter \"{}\". Register it first.",
      where,
      module.name(),
      name);
  return *found;
}

at::Tensor& member_of(
    const char* where,
    torch::nn::Module& module,
    const std::string& name) {
  at::Tensor* found = nullptr;
  detail::for_each_member(module, [&](const char* member, at::Tensor& tensor) {
    found = name == member ? &tensor : found;
  });
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      found != nullptr,
      "[{}] unknown member for parameter \"{}\" of the {}, which is not a "
      "module of torch::nn. Pass it: tie_parameter(module, \"{}\", module.{}, "
      "parameter).",
      where,
      name,
      module.name(),
      name,
      name);
  return *found;
}

void tie(
    const char* where,
    at::Tensor& registered,
    at::Tensor& member,
    const at::Tensor& parameter) {
  DTENSOR_CHECK_VALUE(
      !registered.defined() || !parameter.defined() ||
          registered.sizes() == parameter.sizes(),
      "[{}] the parameter is {}, but the parameter to share is {}. Tie "
      "parameters of the same shape.",
      where,
      detail::state_text(registered),
      detail::state_text(parameter));
  registered = parameter;
  member = parameter;
}

} // namespace

void tie_weights(torch::nn::Module& module, const torch::nn::Module& source) {
  constexpr const char* kWhere = "tie_weights";
  detail::check_members(kWhere, source);
  auto& weight = registered(kWhere, module, kWeight);
  const auto& shared =
      registered(kWhere, const_cast<torch::nn::Module&>(source), kWeight);
  DTENSOR_CHECK_VALUE(
      shared.defined(),
      "[{}] the weight of the {} is undefined. Share a weight that is defined.",
      kWhere,
      source.name());
  tie(kWhere, weight, member_of(kWhere, module, kWeight), shared);
}

void tie_parameter(
    torch::nn::Module& module,
    const std::string& name,
    const at::Tensor& parameter) {
  constexpr const char* kWhere = "tie_parameter";
  auto& known = registered(kWhere, module, name);
  tie(kWhere, known, member_of(kWhere, module, name), parameter);
}

void tie_parameter(
    torch::nn::Module& module,
    const std::string& name,
    at::Tensor& member,
    const at::Tensor& parameter) {
  constexpr const char* kWhere = "tie_parameter";
  tie(kWhere, registered(kWhere, module, name), member, parameter);
}

std::vector<at::Tensor> unique_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> found;
  for (auto& [name, parameter] : detail::unique_parameters(module)) {
    found.push_back(std::move(parameter));
  }
  return found;
}

} // namespace dtensor
