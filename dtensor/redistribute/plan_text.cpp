// SPDX-License-Identifier: BSD-3-Clause
// Texts of plans.
#include <dtensor/redistribute/plan.h>

#include <dtensor/format_text.h>
#include <dtensor/layout/text.h>
#include <dtensor/redistribute/plan_impl.h>

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>

namespace dtensor {
namespace {

constexpr std::array<std::string_view, 7> kStepNames = {
    "slice",
    "all_gather",
    "all_to_all",
    "reduce_scatter",
    "all_reduce",
    "partition",
    "pad"};

// Returns the tensor dimensions that a step unshards or shards, in one of its
// layouts.
std::vector<int64_t> sharded_dims(const Step& step, PlacementsRef placements) {
  const auto& own = step.mesh_dims;
  std::vector<int64_t> dims;
  for (size_t i = 0; i < placements.size(); ++i) {
    const Placement& p = placements[i];
    const bool takes_part = step.before[i] != step.after[i] ||
        std::ranges::find(own, static_cast<int64_t>(i)) != own.end();
    if (p.is_sharded() && takes_part &&
        std::ranges::find(dims, p.dim()) == dims.end()) {
      dims.push_back(p.dim());
    }
  }
  return dims;
}

// Returns the tensor dimensions of a step: " dim 0 to 1", " dims 0, 1".
std::string dims_of(const Step& step) {
  std::string text;
  for (const Placements& placements : {step.before, step.after}) {
    const auto dims = sharded_dims(step, placements);
    if (!dims.empty()) {
      text += !text.empty() ? " to " : dims.size() == 1 ? " dim " : " dims ";
      text += c10::Join(", ", dims);
    }
  }
  return text;
}

// Returns the mesh dimensions of a step: `on "tp"`, `on mesh dims 0, 1`.
std::string place_of(const Step& step, const DeviceMesh& mesh) {
  std::vector<std::string> labels;
  for (const int64_t dim : step.mesh_dims) {
    labels.push_back(mesh.dim_label(dim));
  }
  const char* const numbered = labels.size() == 1 ? "mesh dim " : "mesh dims ";
  return detail::format_text(
      "on {}{}",
      mesh.mesh_dim_names().empty() ? numbered : "",
      c10::Join(", ", labels));
}

std::string line_of(const Step& step, const DeviceMesh& mesh) {
  return detail::format_text(
      "{}{} {}: {} -> {}",
      to_string(step.kind),
      dims_of(step),
      place_of(step, mesh),
      to_string(PlacementsRef(step.before)),
      to_string(PlacementsRef(step.after)));
}

std::string summary_of(const Plan& plan) {
  return detail::format_text(
      "{}, {} bytes per rank, {} us",
      detail::pluralize(plan.collectives(), "collective"),
      plan.wire_bytes,
      plan.microseconds);
}

std::string indented(const std::string& lines) {
  std::string text = "\n  ";
  for (const char c : lines) {
    text += c;
    if (c == '\n') {
      text += "  ";
    }
  }
  return text;
}

} // namespace

std::string_view to_string(StepKind kind) {
  return kStepNames.at(static_cast<size_t>(kind));
}

std::string to_string(const Plan& plan, const DeviceMesh& mesh) {
  if (plan.steps.empty()) {
    return "nothing to do";
  }
  std::string text;
  for (const Step& step : plan.steps) {
    text += (text.empty() ? "" : "\n") + line_of(step, mesh);
  }
  return text;
}

std::string explain_plan(const SpecPtr& from, const SpecPtr& to) {
  // Costs at which the search finds each alternative: one collective costs as
  // much as 10^12 bytes, or one byte as much as 10^3 collectives.
  constexpr LinkCost kCollectives{1e6, 1e3};
  constexpr LinkCost kBytes{1e-6, 1};
  const auto& mesh = from->mesh();
  const detail::Links links(mesh);
  const auto chosen = plan(from, to);
  std::vector<Plan> listed{*chosen};
  std::string text =
      "plan: " + summary_of(*chosen) + indented(to_string(*chosen, mesh));
  const auto add = [&](const char* name, const detail::Links& prices) {
    const auto other = detail::plan_over(from, to, prices);
    const auto same = std::ranges::find(listed, other->steps, &Plan::steps);
    text += detail::format_text("\n{}: ", name) + summary_of(*other);
    if (same == listed.end()) {
      text += indented(to_string(*other, mesh));
      listed.push_back(*other);
    } else {
      text += ", as above";
    }
  };
  add("fewest collectives", links.priced(kCollectives));
  add("fewest bytes", links.priced(kBytes));
  add("one mesh dimension at a time", links.not_joined());
  return text;
}

} // namespace dtensor
