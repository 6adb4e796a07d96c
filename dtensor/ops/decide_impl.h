// SPDX-License-Identifier: BSD-3-Clause
// A decision past the cache, for who asks how it comes about.
#pragma once

#include <dtensor/ops/op_info_impl.h>
#include <dtensor/ops/propagate.h>

#include <memory>
#include <vector>

namespace dtensor::detail {

/// What decide() says of a call that it has never seen; not remembered. A
/// DTensor among `args` is the first. `choices`: see propagate(); those made
/// until then if this throws.
std::shared_ptr<const Decision> decide_anew(
    const OpInfo& info,
    c10::ArrayRef<c10::IValue> args,
    std::vector<Choice>* choices = nullptr);

} // namespace dtensor::detail
