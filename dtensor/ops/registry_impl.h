// SPDX-License-Identifier: BSD-3-Clause
#pragma once

#include <dtensor/ops/registry.h>

namespace dtensor::detail {

/// Returns RuleRegistry::global() for changes; it starts with the built-in
/// rules.
RuleRegistry& registered_rules();

} // namespace dtensor::detail
