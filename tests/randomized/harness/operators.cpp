// SPDX-License-Identifier: BSD-3-Clause
#include "operators.h"

#include <dtensor/ops/path/stack_impl.h>
#include <dtensor/ops/registry.h>

#include <ATen/core/enum_tag.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <set>

#include "tests/torch_version.h"

namespace dtensor::randomized {
namespace {

// Gradient formulas do not check their shapes; they are tested through their
// forward operators.
bool is_drawable(const std::string& op) {
  static const std::set<std::string> excluded = {
      "empty_like",
      "new_empty",
      "new_empty_strided",
      "empty_strided",
      "record_stream",
      "_reshape_alias", // meaningless strides
      "is_same_size",
      // LibTorch reads outside of operands that do not fit: matrices that are
      // not square, random samples above 1, dilated windows in the padding,
      // missing statistics.
      "_cholesky_solve_helper",
      "_native_batch_norm_legit",
      "fractional_max_pool2d",
      "fractional_max_pool3d",
      "max_pool2d_with_indices",
      "max_pool3d_with_indices",
      "_debug_has_internal_overlap"};
  const auto handle =
      c10::Dispatcher::singleton().findSchema(parse_operator_name(op));
  if (!handle || op.starts_with("_foreach") || op.starts_with("_fused")) {
    return false;
  }
  const auto& schema = handle->schema();
  const auto base = schema.name().substr(6);
  // Faults of an old LibTorch.
  if ((base == "reflection_pad3d" && !testing::kReflectionPad3dChecksPadding) ||
      (base == "trace" && !testing::kTraceHasGradientOfTallMatrices)) {
    return false;
  }
  return schema.name().starts_with("aten::") && !schema.arguments().empty() &&
      !handle->hasTag(at::Tag::nondeterministic_seeded) &&
      excluded.count(base) == 0 && base.find("backward") == std::string::npos &&
      base.find("dropout") == std::string::npos;
}

} // namespace

Tensors tensors_in(c10::ArrayRef<c10::IValue> values) {
  Tensors tensors;
  detail::visit_tensors(
      values, [&](const at::Tensor& t, size_t, int) { tensors.push_back(t); });
  return tensors;
}

c10::OperatorHandle find_operator(const std::string& op) {
  const auto name = parse_operator_name(op);
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.name.c_str(), name.overload_name.c_str());
}

std::vector<std::string> drawable_operators(
    const std::vector<std::string>& only) {
  std::vector<std::string> all;
  for (const auto& registered : RuleRegistry::global().names()) {
    const auto name =
        registered.starts_with("aten::") ? registered.substr(6) : registered;
    const auto dot = std::min(name.find('.'), name.size());
    for (const auto& op :
         {name, name.substr(0, dot) + "_" + name.substr(dot)}) {
      const auto base = op.substr(0, op.find('.'));
      const bool is_wanted = only.empty() ||
          std::find(only.begin(), only.end(), base) != only.end();
      if (is_wanted && is_drawable(op)) {
        all.push_back(op);
      }
    }
  }
  TORCH_CHECK_VALUE(!all.empty(), "no operator of that name has a rule");
  return all;
}

} // namespace dtensor::randomized
