// SPDX-License-Identifier: BSD-3-Clause
// Helpers of the styles that act through a module's hooks.
#pragma once

#include <dtensor/parallel/module_hooks.h>
#include <dtensor/parallel/style.h>

namespace dtensor::detail {

/// Returns the module's hooks. Throws NotImplementedError, with the line to
/// change, if the module is not declared with DTENSOR_MODULE. `style` begins
/// the message.
ModuleHooks& hooks_of(const StyleTarget& target, const char* style);

} // namespace dtensor::detail
