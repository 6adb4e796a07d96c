// SPDX-License-Identifier: BSD-3-Clause
// What a call decides: which layouts its operands take, and its results have.
#pragma once

#include <dtensor/ops/decision_cache_impl.h>
#include <dtensor/ops/op_info_impl.h>
#include <dtensor/ops/propagate.h>

#include <memory>
#include <vector>

namespace dtensor::detail {

/// The decision for this call, from this rank's cache or made now; for a caller
/// that knows its key (ops/call_key_impl.h), and for others.
std::shared_ptr<const Decision>
decide(const OpInfo& info, c10::ArrayRef<c10::IValue> args, KeyWords key);
std::shared_ptr<const Decision> decide(
    const OpInfo& info,
    const torch::jit::Stack& stack);

/// What decide() says of a call that it has never seen, for who asks how it
/// comes about; not remembered. A DTensor among `args` is the first. `choices`:
/// see propagate(); those made until then if this throws.
std::shared_ptr<const Decision> decide_anew(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args,
    std::vector<Choice>* choices = nullptr);

} // namespace dtensor::detail
