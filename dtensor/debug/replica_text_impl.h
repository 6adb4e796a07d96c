// SPDX-License-Identifier: BSD-3-Clause
// Names of replicas in errors, and remedies for differences.
#pragma once

#include <dtensor/debug/compare_replicas_impl.h>

#include <string>
#include <string_view>

namespace dtensor::detail {

/// "the input of module \"w1\"".
std::string title_of(ReplicaRole role, std::string_view name);

/// Returns the remedy as a sentence.
const char* advice_for(ReplicaRole role);

} // namespace dtensor::detail
