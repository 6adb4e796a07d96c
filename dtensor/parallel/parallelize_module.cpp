// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/parallelize_module.h>

#include <c10/util/StringUtil.h>
#include <dtensor/comm/mesh_scope.h>
#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/glob_impl.h>
#include <dtensor/parallel/module_claim_impl.h>
#include <dtensor/parallel/module_name_impl.h>
#include <dtensor/parallel/plan_changes_impl.h>
#include <dtensor/parallel/style.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <string_view>

namespace dtensor {
namespace {

constexpr const char* kParallelizeModule = "parallelize_module";

std::vector<std::string> split_at_dots(const std::string& pattern) {
  std::vector<std::string> parts(1);
  for (const char c : pattern) {
    if (c == '.') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

struct Match {
  std::shared_ptr<torch::nn::Module> owner; // keeps `module` alive
  torch::nn::Module* module;
  std::string name;
};

// Where a pattern stopped matching: the deepest level it reached.
struct Miss {
  size_t depth = 0;
  std::vector<std::string> names;
};

std::vector<Match> children_matching(
    const Match& parent,
    const std::string& token,
    size_t depth,
    Miss& miss) {
  std::vector<Match> found;
  std::vector<std::string> names;
  for (const auto& child : parent.module->named_children()) {
    names.push_back(child.key());
    if (detail::matches_glob(token, child.key())) {
      found.push_back(
          {child.value(),
           child.value().get(),
           detail::full_name(parent.name, child.key())});
    }
  }
  if (found.empty() && (miss.names.empty() || depth > miss.depth)) {
    miss = {depth, std::move(names)};
  }
  return found;
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) {
    text += (text.empty() ? "" : ", ") + name;
  }
  return text;
}

std::vector<Match> matches_of(
    torch::nn::Module& root,
    const std::string& pattern) {
  std::vector<Match> level = {{nullptr, &root, ""}};
  if (pattern.empty()) {
    return level;
  }
  Miss miss;
  const auto tokens = split_at_dots(pattern);
  for (size_t depth = 0; depth < tokens.size(); ++depth) {
    std::vector<Match> next;
    for (const auto& parent : level) {
      auto found = children_matching(parent, tokens[depth], depth, miss);
      std::move(found.begin(), found.end(), std::back_inserter(next));
    }
    level = std::move(next);
  }
  DTENSOR_CHECK_VALUE(
      !level.empty(),
      kParallelizeModule,
      "no submodule matches \"",
      pattern,
      "\". ",
      miss.names.empty() ? "There are no names at that level"
                         : "Names at that level: " + join(miss.names),
      ".");
  return level;
}

DeviceMesh checked_mesh(const DeviceMesh& given) {
  auto mesh = detail::mesh_or_current(given, kParallelizeModule);
  DTENSOR_CHECK_VALUE(
      mesh.ndim() == 1,
      kParallelizeModule,
      "tensor parallelism runs along one mesh dimension, and the mesh is ",
      mesh,
      ". Pass a slice, as mesh[\"tp\"].");
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
      std::find(known.begin(), known.end(), names[0]) != known.end() &&
      root[names[0]] == mesh;
  DTENSOR_CHECK_VALUE(
      is_dim && options.keep_dtensors,
      kParallelizeModule,
      "values are to be DTensors on ",
      root,
      is_dim ? ", and keep_dtensors is not set. Set it."
             : c10::str(
                   ", of which ",
                   mesh,
                   " is no dimension. Pass a slice of it, as mesh[\"tp\"]."));
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
  // All patterns are checked before any module is changed.
  std::vector<std::pair<Match, const ParallelStyle*>> work;
  for (const auto& entry : plan) {
    DTENSOR_CHECK_TYPE(
        entry.style != nullptr,
        kParallelizeModule,
        "the plan has no style for \"",
        entry.pattern,
        "\". Give it one, as ColwiseParallel().");
    for (auto& match : matches_of(module, entry.pattern)) {
      work.emplace_back(std::move(match), entry.style.get());
    }
  }
  detail::PlanChanges changes;
  for (const auto& [match, style] : work) {
    style->apply(
        {*match.module,
         match.name,
         mesh,
         options.src_data_rank,
         &changes,
         options.keep_dtensors,
         options.root_mesh});
  }
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
  style.apply(
      {module,
       "",
       tp_mesh,
       options.src_data_rank,
       nullptr,
       options.keep_dtensors,
       options.root_mesh});
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
  TORCH_WARN(
      "[",
      kParallelizeModule,
      "] there is no plan for the ",
      module.name(),
      ": it stays as it is. Pass a plan or a style.");
}

} // namespace dtensor
