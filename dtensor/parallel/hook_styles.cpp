// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/parallel/hook_styles_impl.h>

#include <dtensor/error.h>
#include <dtensor/parallel/layout_boundary_impl.h>
#include <torch/nn/module.h>

namespace dtensor::detail {

ModuleHooks& hooks_of(const StyleTarget& target, const char* style) {
  auto* hooks = dynamic_cast<ModuleHooks*>(&target.module);
  DTENSOR_CHECK_NOT_IMPLEMENTED(
      hooks != nullptr,
      "[{}] {} has no hooks. Declare it with DTENSOR_MODULE instead of "
      "TORCH_MODULE.",
      style,
      describe_typed(target));
  return *hooks;
}

} // namespace dtensor::detail
