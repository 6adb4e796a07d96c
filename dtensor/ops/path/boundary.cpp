// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/ops/path/boundary_impl.h>

#include <dtensor/tensor/meta_impl.h>

#include <algorithm>

namespace dtensor::detail {
namespace {

// Returns true for a factor other than 1, as in addmm: beta * bias + alpha *
// input * parameter.
bool scales(const c10::IValue& value) {
  return value.isScalar() && !value.toScalar().equal(1);
}

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
  // Keeps the boundaries alive: refresh() may replace those of `t`.
  if (const auto boundaries = meta_of(t).boundaries) {
    if (const auto& boundary = boundaries->get_any(kind)) {
      boundary->refresh(t, kind);
    }
  }
}

std::shared_ptr<const Boundaries> boundaries_to_carry(
    const OpTraits& traits,
    const at::Tensor& from) {
  if (meta_of(from).boundaries == nullptr) {
    return nullptr;
  }
  refresh_boundaries(from, BoundaryKind::kLinear);
  const auto& all = meta_of(from).boundaries;
  const auto& boundary = all->get_any(BoundaryKind::kLinear);
  const bool goes_on =
      traits.carries || (boundary != nullptr && boundary->applies_to_rows());
  return goes_on ? all : nullptr;
}

void name_module(c10::Error& error, const std::string& module) {
  constexpr std::string_view kIn = "in ";
  const std::string_view text = error.msg();
  const bool is_ours = text.starts_with('[') && !text.starts_with("[aten::");
  const bool is_named = std::any_of(
      error.context().begin(), error.context().end(), [&](const auto& line) {
        return line.starts_with(kIn);
      });
  if (!is_ours && !is_named) {
    error.add_context(std::string(kIn) + module);
  }
}

at::Tensor multiply_by_boundary(
    const Boundary& boundary,
    const BoundaryRole& role,
    c10::ArrayRef<c10::IValue> args) {
  if (role.kind != BoundaryKind::kLinear ||
      std::any_of(args.begin(), args.end(), scales)) {
    return {};
  }
  const auto parameter = args[role.parameter].toTensor();
  const bool has_bias = role.bias && !args[*role.bias].isNone();
  return boundary.multiply(
      args[role.input].toTensor(),
      role.transposed ? parameter.t() : parameter,
      has_bias ? args[*role.bias].toTensor() : at::Tensor());
}

} // namespace dtensor::detail
