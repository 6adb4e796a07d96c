// SPDX-License-Identifier: BSD-3-Clause
// Decisions of calls: the layouts to which operands are redistributed, and the
// layouts of the results.
#pragma once

#include <dtensor/api.h>
#include <dtensor/ops/path/decision_cache_impl.h>
#include <dtensor/ops/path/op_info_impl.h>
#include <dtensor/ops/propagate.h>

#include <memory>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Returns the decision for this call, from this rank's cache or made now. The
/// first overload serves callers that have the key (ops/path/call_key_impl.h).
std::shared_ptr<const Decision>
decide(const OpInfo& info, c10::ArrayRef<c10::IValue> args, KeyWords key);
std::shared_ptr<const Decision> decide(
    const OpInfo& info,
    const torch::jit::Stack& stack);

/// Makes the decision of decide() without reading or changing the cache. The
/// first DTensor among `args` provides the mesh. `choices`: see propagate(). If
/// the function throws, `choices` holds the choices made until then.
DTENSOR_INTERNAL_API std::shared_ptr<const Decision> decide_uncached(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args,
    std::vector<Choice>* choices = nullptr);

/// Throws if `self`, which operator `name` would write, is expanded. LibTorch
/// refuses such writes only on ranks with elements.
void check_not_expanded(const std::string& name, const Spec& self);

} // namespace dtensor::detail
