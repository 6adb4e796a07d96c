// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/ops/registry.h>

namespace dtensor::detail {

/// RuleRegistry::global(), to change it; at first it has the rules that the
/// library comes with.
RuleRegistry& registered_rules();

} // namespace dtensor::detail
