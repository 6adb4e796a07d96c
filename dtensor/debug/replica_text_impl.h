// SPDX-License-Identifier: BSD-3-Clause
// Names of replicas in errors, and what to do about one that differs.
#pragma once

#include <dtensor/debug/compare_replicas_impl.h>

#include <string>
#include <string_view>

namespace dtensor::detail {

/// "the input of module \"w1\"".
std::string title_of(ReplicaRole role, std::string_view name);

/// A sentence.
const char* advice_for(ReplicaRole role);

} // namespace dtensor::detail
