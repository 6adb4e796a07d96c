// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/state_dict.h>

#include <ATen/core/grad_mode.h>
#include <dtensor/parallel/state/module_members_impl.h>
#include <dtensor/parallel/state/state_values_impl.h>
#include <dtensor/tensor/tensor_replacement_impl.h>
#include <torch/nn/module.h>

#include <algorithm>

namespace dtensor {
namespace {

// True if `state` has the tensor under another of its names.
bool has_another_name(
    const StateDict& state,
    const detail::TiedNames& tied,
    const std::string& name) {
  const auto& names = tied.names_of(name);
  return std::ranges::any_of(
      names, [&](const auto& other) { return state.contains(other); });
}

void check_fits(
    const StateDict& model,
    const StateDict& state,
    const StateDictOptions& options,
    const char* where) {
  detail::StateProblems problems;
  const detail::TiedNames tied(model);
  for (const auto& item : model) {
    const auto* source = state.find(item.key());
    if (source == nullptr) {
      if (options.strict && !has_another_name(state, tied, item.key())) {
        problems.is_missing(item.key());
      }
    } else if (!detail::fits_state(item.value(), *source)) {
      problems.has_other_shape(item.key(), item.value(), *source);
    }
  }
  for (const auto& item : state) {
    if (options.strict && !model.contains(item.key())) {
      problems.is_unexpected(item.key());
    }
  }
  problems.check(where);
}

} // namespace

StateDict detail::tensors_of(
    const char* where,
    const torch::nn::Module& module,
    bool frozen_too) {
  check_members(where, module);
  StateDict all;
  for (const auto& item : module.named_parameters()) {
    if (item.value().defined() &&
        (frozen_too || item.value().requires_grad())) {
      all.insert(item.key(), item.value());
    }
  }
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) {
      all.insert(item.key(), item.value());
    }
  }
  return all;
}

StateDict get_model_state_dict(
    const torch::nn::Module& module,
    const StateDictOptions& options) {
  constexpr const char* kWhere = "get_model_state_dict";
  detail::check_options(options, kWhere);
  StateDict result;
  for (const auto& item :
       detail::tensors_of(kWhere, module, !options.ignore_frozen_params)) {
    auto value = detail::state_value(item.value(), options);
    if (detail::gets_state(options)) {
      result.insert(item.key(), std::move(value));
    }
  }
  return result;
}

void set_model_state_dict(
    torch::nn::Module& module,
    const StateDict& given,
    const StateDictOptions& options) {
  constexpr const char* kWhere = "set_model_state_dict";
  detail::check_options(options, kWhere);
  const auto state = options.broadcast_from_rank0
      ? detail::broadcast_state(given, kWhere)
      : given;
  auto model =
      detail::tensors_of(kWhere, module, !options.ignore_frozen_params);
  check_fits(model, state, options, kWhere);
  const c10::NoGradGuard no_grad;
  for (auto& item : model) {
    if (const auto* source = state.find(item.key())) {
      if (item.value().is_meta()) {
        detail::allocate(item.value());
      }
      item.value().copy_(detail::redistribute_like(item.value(), *source));
    }
  }
}

} // namespace dtensor
