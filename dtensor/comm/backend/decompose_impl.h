// SPDX-License-Identifier: BSD-3-Clause
// Decomposition of collectives into primitives, which transports have.
//
// A primitive is an all_reduce, broadcast, send or recv of any shape, or an
// all_gather, reduce_scatter or all_to_all of a one-dimensional buffer with the
// members' shards in rank order. For an all_gather and a reduce_scatter,
// `sizes` are the numbers of elements of the shards. An all_to_all has `sizes`
// and `received`. Primitives may be in flight: the same code serves synchronous
// and asynchronous collectives.
#pragma once

#include <c10/util/FunctionRef.h>
#include <dtensor/comm/group_backend.h>

#include <string_view>
#include <vector>

namespace dtensor::detail {

/// Begins a primitive.
using BeginPrimitive = c10::function_ref<InFlight(Collective&&)>;

/// Runs `collective` as one primitive of `group`, which `begin` begins. Sizes
/// that the caller did not pass are exchanged before, synchronously.
InFlight decompose(
    Collective&& collective,
    const GroupBackend& group,
    BeginPrimitive begin);

/// Gathers the sizes of all members' shards; `mine` is this rank's. Errors name
/// the function `where`.
Sizes exchange_sizes(
    std::string_view where,
    const GroupBackend& group,
    BeginPrimitive begin,
    int64_t mine);
/// Exchanges the shapes of `sent`; result[r] is the shape that member r sends.
std::vector<Sizes> exchange_shapes(
    std::string_view where,
    const GroupBackend& group,
    BeginPrimitive begin,
    c10::ArrayRef<at::Tensor> sent);

} // namespace dtensor::detail
