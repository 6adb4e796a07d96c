// SPDX-License-Identifier: BSD-3-Clause
// Helpers of styles: their mesh, names for messages, and the module's hooks.
#pragma once

#include <dtensor/api.h>
#include <dtensor/ops/boundary/converter_impl.h>
#include <dtensor/parallel/module_hooks.h>
#include <dtensor/parallel/style.h>

#include <string>

namespace dtensor::detail {

/// Returns the mesh of the module's tensors: the target's root mesh, or the
/// target's mesh if there is no root mesh.
StyleMesh style_mesh(const StyleTarget& target);

/// Returns the module's name for messages.
std::string describe_module(const StyleTarget& target);
/// Like describe_module(), with the type: "module \"w1\" of type
/// torch::nn::LinearImpl".
std::string describe_typed(const StyleTarget& target);

/// Returns the module's hooks. Throws NotImplementedError, with the line to
/// change, if the module is not declared with DTENSOR_MODULE. `style` begins
/// the message.
DTENSOR_INTERNAL_API ModuleHooks& hooks_of(
    const StyleTarget& target,
    const char* style);

} // namespace dtensor::detail
