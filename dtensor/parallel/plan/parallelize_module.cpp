// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/parallelize_module.h>

#include <c10/util/Type.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/comm/observer.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/hook_list.h>
#include <dtensor/parallel/plan/module_claim_impl.h>
#include <dtensor/parallel/plan/module_names_impl.h>
#include <dtensor/parallel/plan/plan_changes_impl.h>
#include <dtensor/parallel/style.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <typeinfo>

namespace dtensor {
namespace {

constexpr const char* kParallelizeModule = "parallelize_module";

DeviceMesh checked_mesh(const DeviceMesh& given) {
  auto mesh = detail::mesh_or_current(given, kParallelizeModule);
  DTENSOR_CHECK_VALUE(
      mesh.ndim() == 1,
      "[{}] tensor parallelism runs along one mesh dimension, but the mesh is "
      "{}. Pass a slice, such as mesh[\"tp\"].",
      kParallelizeModule,
      mesh);
  return mesh;
}

void check_root(const DeviceMesh& mesh, const ParallelizeOptions& options) {
  const auto& root = options.root_mesh;
  if (!root.defined()) {
    return;
  }
  const auto& names = mesh.mesh_dim_names();
  const auto& known = root.mesh_dim_names();
  const bool is_dim = !names.empty() &&
      std::ranges::find(known, names[0]) != known.end() &&
      root[names[0]] == mesh;
  DTENSOR_CHECK_VALUE(
      is_dim && options.keep_dtensors,
      "[{}] root_mesh is {}, but {}",
      kParallelizeModule,
      root,
      is_dim ? "keep_dtensors is not set. Set keep_dtensors = true."
             : detail::format_text(
                   "the mesh, {}, is not a dimension of it. Pass a slice of "
                   "root_mesh, such as root_mesh[\"tp\"].",
                   mesh));
}

// Returns the name of a style for messages: "ColwiseParallel".
std::string style_name(const ParallelStyle& style) {
  const auto name = c10::demangle(typeid(style).name());
  const auto last = name.rfind("::");
  return last == name.npos ? name : name.substr(last + 2);
}

// Applies a style to the module called `name`. Null `changes`: at once.
void apply_style(
    const ParallelStyle& style,
    torch::nn::Module& module,
    const std::string& name,
    const DeviceMesh& mesh,
    const ParallelizeOptions& options,
    detail::PlanChanges* changes) {
  style.apply(
      {module,
       name,
       mesh,
       options.src_data_rank,
       changes,
       options.keep_dtensors,
       options.root_mesh,
       style_name(style)});
}

// Sets the names of modules with hooks, for errors inside their forward.
void name_modules(torch::nn::Module& root) {
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    auto* hooks = dynamic_cast<ModuleHooks*>(item.value().get());
    if (hooks != nullptr && hooks->module_name().empty()) {
      hooks->set_module_name(detail::keep_module_name(item.key()));
    }
  }
}

} // namespace

void parallelize_module(
    torch::nn::Module& module,
    const DeviceMesh& given_mesh,
    const ParallelizePlan& plan,
    const ParallelizeOptions& options) {
  const auto mesh = checked_mesh(given_mesh);
  check_root(mesh, options);
  const detail::ModuleClaim claim(kParallelizeModule, module);
  // Checks all patterns before changing any module.
  detail::PlanMatches matches(module);
  std::vector<std::pair<detail::Match, const ParallelStyle*>> work;
  for (const auto& entry : plan) {
    DTENSOR_CHECK_TYPE(
        entry.style != nullptr,
        "[{}] the plan has no style for \"{}\". Add a style, such as "
        "ColwiseParallel().",
        kParallelizeModule,
        entry.pattern);
    for (auto& match : matches.find(entry.pattern)) {
      work.emplace_back(std::move(match), entry.style.get());
    }
  }
  detail::PlanChanges changes;
  for (const auto& [match, style] : work) {
    apply_style(*style, *match.module, match.name, mesh, options, &changes);
  }
  name_modules(module);
  changes.carry_out();
}

void parallelize_module(
    torch::nn::Module& module,
    const DeviceMesh& mesh,
    const ParallelStyle& style,
    const ParallelizeOptions& options) {
  const auto tp_mesh = checked_mesh(mesh);
  check_root(tp_mesh, options);
  const detail::ModuleClaim claim(kParallelizeModule, module);
  name_modules(module);
  apply_style(style, module, "", tp_mesh, options, nullptr);
}

void parallelize_module(
    torch::nn::Module& module,
    const ParallelizePlan& plan,
    const ParallelizeOptions& options) {
  parallelize_module(module, DeviceMesh(), plan, options);
}

void parallelize_module(
    torch::nn::Module& module,
    const ParallelStyle& style,
    const ParallelizeOptions& options) {
  parallelize_module(module, DeviceMesh(), style, options);
}

void parallelize_module(
    const torch::nn::Module& module,
    const DeviceMesh& mesh) {
  checked_mesh(mesh);
  TORCH_WARN(detail::format_text(
      "[{}] no plan for the {}: the module is unchanged. Pass a plan or a "
      "style.",
      kParallelizeModule,
      module.name()));
}

} // namespace dtensor
