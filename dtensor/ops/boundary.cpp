// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/boundary_impl.h>

#include <dtensor/tensor/meta_impl.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace dtensor::detail {
namespace {

constexpr std::array<std::pair<std::string_view, BoundaryRole>, 6> kRoles = {{
    {"aten::matmul", {BoundaryKind::kLinear, 0, 1}},
    {"aten::linear", {BoundaryKind::kLinear, 0, 1}},
    {"aten::addmm", {BoundaryKind::kLinear, 1, 2}},
    {"aten::embedding", {BoundaryKind::kEmbedding, 1, 0}},
    {"aten::layer_norm", {BoundaryKind::kNorm, 0, 2}},
    {"aten::rms_norm", {BoundaryKind::kNorm, 0, 2}},
}};

constexpr std::array<std::string_view, 6> kCarriers = {
    "aten::t",
    "aten::transpose",
    "aten::_to_copy",
    "aten::clone", // as Module::clone() calls it
    "aten::detach",
    "aten::alias"};

} // namespace

const Boundary* boundary_of(const at::Tensor& t, BoundaryKind kind) {
  if (!is_dtensor(t)) {
    return nullptr;
  }
  const auto& boundaries = meta_of(t).boundaries;
  return boundaries == nullptr ? nullptr : boundaries->get(kind).get();
}

void refresh_boundaries(const at::Tensor& t, BoundaryKind kind) {
  if (!is_dtensor(t) || !t.is_leaf()) {
    return;
  }
  // Held: refresh() may exchange what rides on `t`.
  if (const auto boundaries = meta_of(t).boundaries) {
    if (const auto& boundary = boundaries->get_any(kind)) {
      boundary->refresh(t, kind);
    }
  }
}

std::optional<BoundaryRole> boundary_role(const std::string& name) {
  const auto* const it =
      std::find_if(kRoles.begin(), kRoles.end(), [&](const auto& r) {
        return r.first == name;
      });
  return it == kRoles.end() ? std::nullopt : std::optional(it->second);
}

at::Tensor multiply_by_boundary(
    const Boundary& boundary,
    const std::string& name,
    c10::ArrayRef<c10::IValue> args) {
  if (name == "aten::matmul") {
    return boundary.multiply(args[0].toTensor(), args[1].toTensor(), {});
  }
  if (name == "aten::linear") {
    return boundary.multiply(
        args[0].toTensor(),
        args[1].toTensor().t(),
        args[2].isNone() ? at::Tensor() : args[2].toTensor());
  }
  if (name == "aten::addmm" && args[3].toScalar().equal(1) &&
      args[4].toScalar().equal(1)) {
    return boundary.multiply(
        args[1].toTensor(), args[2].toTensor(), args[0].toTensor());
  }
  return {};
}

bool carries_boundaries(const std::string& name) {
  return std::find(kCarriers.begin(), kCarriers.end(), name) != kCarriers.end();
}

} // namespace dtensor::detail
