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
      "[{}] {} has layouts for {} arguments, but the function was called with "
      "{} (counting each tensor of a list). Give one for each.",
      kLocalMap,
      option,
      given,
      arguments);
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
      "[{}] argument {} is a plain tensor of shape {}, but in_placements has "
      "{} for it. Make it a DTensor, or give std::nullopt to pass it on.",
      kLocalMap,
      i,
      leaf.tensor.sizes(),
      to_string(PlacementsRef(*wanted.value())));
  DTENSOR_CHECK_TYPE(
      leaf.is_tensor,
      "[{}] argument {} is not a tensor, but in_placements has {} for it. Give "
      "std::nullopt.",
      kLocalMap,
      i,
      to_string(PlacementsRef(*wanted.value())));
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
      "[{}] argument {} is a DTensor, {}, but in_placements has std::nullopt "
      "for it. Give its layout.",
      kLocalMap,
      i,
      *spec);
  const auto layout = normalize_placements(
      spec->mesh(), *wanted.value(), spec->dim(), kLocalMap);
  if (spec->placements() == PlacementsRef(layout)) {
    return t;
  }
  DTENSOR_CHECK_VALUE(
      may_redistribute,
      "[{}] argument {} is {}, but in_placements has {} for it. Redistribute "
      "it, or set redistribute_inputs.",
      kLocalMap,
      i,
      *spec,
      to_string(PlacementsRef(layout)));
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
        "[{}] argument {}, {}, is on a different mesh than {}, {}. Bring all "
        "to one mesh.",
        kLocalMap,
        i,
        spec,
        asked.defined() ? "device_mesh" : "the ones before",
        mesh);
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
