// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/data_parallel/fully_shard.h>

#include <ATen/core/grad_mode.h>
#include <dtensor/comm/init_device_mesh.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/data_parallel/unit_impl.h>
#include <dtensor/data_parallel/unit_source_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/plan/module_claim_impl.h>
#include <dtensor/parallel/plan/plan_changes_impl.h>
#include <dtensor/parallel/state/module_members_impl.h>
#include <dtensor/tensor/dispatch_keys_impl.h>
#include <dtensor/tensor/gradient_impl.h>
#include <dtensor/tensor/meta_impl.h>
#include <dtensor/tensor/tensor_replacement_impl.h>
#include <dtensor/tensor/wrap_impl.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace dtensor {
namespace {

using detail::kFullyShard;
using detail::Unit;
using detail::UnitPtr;

DeviceMesh checked_mesh(const DeviceMesh& given) {
  auto mesh = detail::mesh_or_current(given, kFullyShard);
  DTENSOR_CHECK_VALUE(
      mesh.ndim() <= 2,
      "[{}] parameters are sharded over the last mesh dimension and "
      "replicated over at most one before it, but the mesh is {}. Pass a "
      "slice, such as mesh[\"dp\"].",
      kFullyShard,
      mesh);
  DTENSOR_CHECK_VALUE(
      mesh.contains_this_rank(),
      "[{}] this rank is not in the mesh {}. Call it only on ranks of the "
      "mesh.",
      kFullyShard,
      mesh);
  return mesh;
}

// Returns the groups of a unit. To gather among fewer ranks in the backward
// pass, splits the sharding dimension in two and uses the inner dimension.
detail::UnitGroups groups_of(
    const DeviceMesh& mesh,
    const std::optional<ReshardAfterForward>& reshards) {
  const auto groups = get_all_groups(mesh);
  detail::UnitGroups result{
      groups.back(), groups.size() > 1 ? groups[0] : nullptr, nullptr};
  if (reshards && reshards->ranks() > 0) {
    const auto ranks = reshards->ranks();
    const auto all = result.shard->size();
    DTENSOR_CHECK_VALUE(
        ranks > 1 && all % ranks == 0,
        "[{}] reshard_after_forward is {} for {}. Pass a number above 1 that "
        "divides the number of ranks, or true.",
        kFullyShard,
        ranks,
        detail::pluralize(all, "rank"));
    const auto split_message = DeviceMesh(mesh).unflatten(
        mesh.ndim() - 1,
        {all / ranks, ranks},
        mesh.mesh_dim_names().empty()
            ? std::vector<std::string>()
            : std::vector<std::string>{"dtensor_far", "dtensor_near"});
    result.reshard_group = get_all_groups(split_message).back();
  }
  return result;
}

// Returns the parameters that are neither ignored nor in a unit.
detail::NamedParameters parameters_for(
    const torch::nn::Module& module,
    const FullyShardOptions& options) {
  const auto& ignored = options.ignored_params;
  auto found = detail::unique_parameters(module);
  std::erase_if(found, [&](const auto& item) {
    return detail::unit_of(item.second) != nullptr ||
        std::ranges::any_of(
               ignored, [&](const auto& t) { return t.is_same(item.second); });
  });
  return found;
}

void check_dtypes(
    const detail::NamedParameters& parameters,
    const MixedPrecisionPolicy& policy) {
  for (const auto& [name, parameter] : parameters) {
    DTENSOR_CHECK_VALUE(
        at::isFloatingType(parameter.scalar_type()) ||
            !(policy.param_dtype || policy.reduce_dtype),
        "[{}] parameter \"{}\" has dtype {}, which mp_policy cannot cast. Add "
        "it to ignored_params.",
        kFullyShard,
        name,
        parameter.scalar_type());
    DTENSOR_CHECK_VALUE(
        policy.param_dtype ||
            parameter.scalar_type() == parameters[0].second.scalar_type(),
        "[{}] parameters of one unit have different dtypes: \"{}\" {}, \"{}\" "
        "{}. Set mp_policy.param_dtype, or make units of one dtype.",
        kFullyShard,
        parameters[0].first,
        parameters[0].second.scalar_type(),
        name,
        parameter.scalar_type());
  }
}

// Returns one flag per parameter: true if its unsharded form keeps the
// parameter's dtype although the policy has another dtype.
std::vector<bool> kept_dtypes(
    const detail::NamedParameters& parameters,
    const MixedPrecisionPolicy& policy) {
  std::vector<bool> kept;
  for (const auto& [name, parameter] : parameters) {
    const auto own = parameter.scalar_type();
    const auto other = policy.param_dtype.value_or(own);
    const auto chosen = policy.param_dtype_override_fn
        ? policy.param_dtype_override_fn(parameter).value_or(other)
        : other;
    DTENSOR_CHECK_VALUE(
        chosen == own || chosen == other,
        "[{}] param_dtype_override_fn returned {} for parameter \"{}\" of "
        "dtype {}. Return the parameter's own dtype, or nullopt.",
        kFullyShard,
        chosen,
        name,
        own);
    kept.push_back(chosen != other);
  }
  return kept;
}

// Lets deferred initialization find the origin of a local shard on the meta
// device.
void note_origin(const at::Tensor& part, const at::Tensor& parameter) {
  const auto plain = is_dtensor(parameter) ? detail::plain_meta_of(parameter)
                                           : parameter.detach();
  if (part.is_meta() && plain.defined()) {
    part.unsafeGetTensorImpl()->set_backend_meta(
        c10::make_intrusive<detail::MetaShardNote>(plain));
  }
}

// Moves the local shard to the CPU under an offload policy.
at::Tensor kept(
    const at::Tensor& part,
    const std::optional<CPUOffloadPolicy>& offload) {
  if (!offload || part.is_cpu() || part.is_meta()) {
    return part;
  }
  const auto on_cpu = part.cpu();
  return offload->pin_memory ? on_cpu.pin_memory() : on_cpu;
}

// Replaces the parameter in place by a DTensor of its local shard, and shards
// its gradient. Returns the layout of the unsharded parameter.
detail::UnshardedLayout shard(
    const at::Tensor& parameter,
    const detail::ParameterLayout& layout,
    const std::optional<CPUOffloadPolicy>& offload) {
  const c10::NoGradGuard no_grad;
  const auto gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
  detail::UnshardedLayout unsharded{layout.unsharded, nullptr};
  if (is_dtensor(parameter)) {
    unsharded.boundaries =
        std::exchange(detail::meta_of(parameter).boundaries, nullptr);
  }
  const auto part = kept(detail::copy_shard(parameter, layout), offload);
  note_origin(part, parameter);
  detail::replace_tensor_impl(parameter, detail::wrap(part, layout.spec));
  if (gradient.defined()) {
    parameter.mutable_grad() = detail::wrap(
        kept(detail::copy_shard(gradient, layout), offload),
        layout.spec->with_dtype(gradient.scalar_type()));
  }
  detail::keep_gradient_in_layout(parameter);
  return unsharded;
}

std::map<const torch::nn::Module*, std::string> names_in(
    const torch::nn::Module& module) {
  std::map<const torch::nn::Module*, std::string> names;
  for (const auto& item :
       module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    names.emplace(item.value().get(), item.key());
  }
  return names;
}

void nest_in(
    const std::set<UnitPtr>& inner,
    const UnitPtr& outer,
    const torch::nn::Module& module) {
  const auto names = names_in(module);
  for (const auto& unit : inner) {
    if (const auto name = names.find(unit->module()); name != names.end()) {
      unit->nest_in(outer, name->second);
    }
  }
}

auto cast_to(at::ScalarType dtype) {
  return [dtype](const std::vector<at::Tensor*>& tensors) {
    for (auto* t : tensors) {
      if (t->defined() && at::isFloatingType(t->scalar_type())) {
        *t = t->to(dtype);
      }
    }
  };
}

void cast_inputs(ModuleHooks& hooks, const MixedPrecisionPolicy& policy) {
  if (policy.param_dtype && policy.cast_forward_inputs) {
    hooks.add_forward_pre_hook(cast_to(*policy.param_dtype));
  }
}

void hook(
    torch::nn::Module& module,
    const UnitPtr& unit,
    const MixedPrecisionPolicy& policy) {
  if (const auto dtype = policy.output_dtype) {
    detail::hooks_of({module, "", DeviceMesh()}, kFullyShard)
        .add_forward_hook(cast_to(*dtype));
  }
  if (auto* hooks = dynamic_cast<ModuleHooks*>(&module)) {
    cast_inputs(*hooks, policy);
    hooks->add_forward_scope([unit] { return unit->open(); });
  }
}

// Hooks inner modules that are declared with DTENSOR_MODULE and have parameters
// of this unit. Their forward pass gets unsharded parameters in param_dtype, so
// their inputs are cast to the same dtype.
void hook_inside(
    const torch::nn::Module& module,
    const UnitPtr& unit,
    const MixedPrecisionPolicy& policy) {
  for (const auto& inner : module.modules(/*include_self=*/false)) {
    auto* hooks = dynamic_cast<ModuleHooks*>(inner.get());
    const auto own = inner->parameters(/*recurse=*/false);
    const bool has_any = std::ranges::any_of(
        own, [&](const at::Tensor& t) { return detail::unit_of(t) == unit; });
    if (hooks != nullptr && has_any) {
      cast_inputs(*hooks, policy);
      hooks->add_forward_scope([unit] { return unit->open_nested(); });
    }
  }
}

std::vector<detail::ParameterLayout> layouts_for(
    const detail::NamedParameters& parameters,
    const DeviceMesh& mesh,
    const FullyShardOptions& options) {
  detail::DataMesh data{mesh};
  std::vector<detail::ParameterLayout> layouts;
  for (const auto& [name, parameter] : parameters) {
    detail::check_not_replicated(parameter, kFullyShard);
    layouts.push_back(detail::layout_of(
        parameter,
        name,
        data,
        options.shard_placement_fn ? options.shard_placement_fn(parameter)
                                   : std::nullopt));
  }
  return layouts;
}

// Connects the parameter to its unit. From then on, operators get the unsharded
// parameter, and writes to the parameter are recorded (also writes through
// views).
void join(const at::Tensor& parameter, const UnitPtr& unit, size_t i) {
  auto& meta = detail::meta_of(parameter);
  meta.unsharded_source =
      std::make_shared<detail::UnitParameterSource>(unit, i);
  meta.view_facts = c10::make_intrusive<detail::ViewFacts>();
  meta.view_facts->writes = c10::VariableVersion(/*version=*/0);
  detail::add_intercept_key(parameter);
}

} // namespace

FSDPModule fully_shard(
    torch::nn::Module& module,
    const FullyShardOptions& options) {
  const auto mesh = checked_mesh(options.mesh);
  const detail::ModuleClaim claim(kFullyShard, module);
  const auto inner = detail::units_in(module);
  DTENSOR_CHECK_VALUE(
      detail::unit_of_module(module) == nullptr,
      "[{}] {} is a unit already. Call fully_shard once for a module.",
      kFullyShard,
      module.name());
  const auto parameters = parameters_for(module, options);
  check_dtypes(parameters, options.mp_policy);
  const auto kept = kept_dtypes(parameters, options.mp_policy);
  auto layouts = layouts_for(parameters, mesh, options);
  const auto unit = std::make_shared<Unit>(
      &module,
      module.name(),
      groups_of(mesh, options.reshard_after_forward),
      options);
  hook(module, unit, options.mp_policy);
  std::vector<detail::UnitParameter> all;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, parameter] = parameters[i];
    auto unsharded = shard(parameter, layouts[i], options.offload_policy);
    all.push_back(
        {parameter.unsafeGetTensorImpl(),
         name,
         std::move(layouts[i]),
         std::move(unsharded),
         kept[i]});
  }
  unit->set_parameters(std::move(all));
  for (size_t i = 0; i < parameters.size(); ++i) {
    join(parameters[i].second, unit, i);
  }
  nest_in(inner, unit, module);
  hook_inside(module, unit, options.mp_policy);
  return FSDPModule(unit);
}

} // namespace dtensor
