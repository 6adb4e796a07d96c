// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/tensor/local_map_arguments_impl.h>

#include <dtensor/error.h>
#include <dtensor/layout/text.h>
#include <dtensor/tensor/dtensor.h>
#include <dtensor/tensor/meta_impl.h>

#include <utility>

namespace dtensor::detail {
namespace {

void check_number_of_layouts(
    const char* option,
    size_t given,
    size_t arguments) {
  DTENSOR_CHECK_VALUE(
      given == 0 || given == arguments,
      kLocalMap,
      option,
      " has layouts for ",
      given,
      " arguments, but the function was called with ",
      arguments,
      ", each tensor of a list counted. Give one for each.");
}

// Throws if a layout was given for an argument that is not a DTensor.
void check_passed_on(
    const MapLeaf& leaf,
    const MaybePlacements& wanted,
    size_t i) {
  if (!wanted.value()) {
    return;
  }
  DTENSOR_CHECK_TYPE(
      !leaf.is_tensor || !leaf.tensor.defined(),
      kLocalMap,
      "argument ",
      i,
      " is a plain tensor of shape ",
      leaf.tensor.sizes(),
      ", but in_placements has ",
      to_string(PlacementsRef(*wanted.value())),
      " for it. Make it a DTensor, or give std::nullopt to pass it on.");
  DTENSOR_CHECK_TYPE(
      leaf.is_tensor,
      kLocalMap,
      "argument ",
      i,
      " is no tensor, but in_placements has ",
      to_string(PlacementsRef(*wanted.value())),
      " for it. Give std::nullopt.");
}

// Returns the DTensor in its requested layout.
at::Tensor in_layout(
    const at::Tensor& t,
    const MaybePlacements& wanted,
    bool may_redistribute,
    size_t i) {
  const auto& spec = spec_of(t);
  DTENSOR_CHECK_VALUE(
      wanted.value().has_value(),
      kLocalMap,
      "argument ",
      i,
      " is a DTensor, ",
      *spec,
      ", but in_placements has std::nullopt for it. Give its layout.");
  const auto layout = normalize_placements(
      spec->mesh(), *wanted.value(), spec->dim(), kLocalMap);
  if (spec->placements() == PlacementsRef(layout)) {
    return t;
  }
  DTENSOR_CHECK_VALUE(
      may_redistribute,
      kLocalMap,
      "argument ",
      i,
      " is ",
      *spec,
      ", but in_placements has ",
      to_string(PlacementsRef(layout)),
      " for it. Redistribute it, or set redistribute_inputs.");
  return DTensor(t).redistribute(layout);
}

} // namespace

void check_numbers_of_layouts(
    const LocalMapLayouts& layouts,
    size_t arguments) {
  check_number_of_layouts("in_placements", layouts.in.size(), arguments);
  check_number_of_layouts(
      "in_grad_placements",
      layouts.options.in_grad_placements.size(),
      arguments);
}

DeviceMesh common_mesh(const MapLeaves& args, const DeviceMesh& asked) {
  DeviceMesh mesh = asked;
  for (size_t i = 0; i < args.size(); ++i) {
    if (!is_distributed(args[i])) {
      continue;
    }
    const auto& spec = *spec_of(args[i].tensor);
    DTENSOR_CHECK(
        !mesh.defined() || spec.mesh() == mesh,
        kLocalMap,
        "argument ",
        i,
        ", ",
        spec,
        ", is on another mesh than ",
        asked.defined() ? "device_mesh" : "the ones before",
        ", ",
        mesh,
        ". Bring all to one mesh.");
    mesh = spec.mesh();
  }
  return mesh;
}

MapLeaves in_layouts(MapLeaves args, const LocalMapLayouts& layouts) {
  for (size_t i = 0; i < args.size() && !layouts.in.empty(); ++i) {
    const auto& wanted = layouts.in[i];
    if (!is_distributed(args[i])) {
      check_passed_on(args[i], wanted, i);
      continue;
    }
    args[i].tensor = in_layout(
        args[i].tensor, wanted, layouts.options.redistribute_inputs, i);
  }
  return args;
}

} // namespace dtensor::detail
