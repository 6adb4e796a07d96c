// SPDX-License-Identifier: BSD-3-Clause
// register_sharding: adds rules for operators of other libraries, or replaces
// built-in rules.
//
//   // mylib::scale(Tensor x, Tensor factors) -> Tensor, one factor per row
//   register_sharding("mylib::scale", [](const OpCall&, int64_t) {
//     return Strategies{
//         {.outputs = {Shard(0)}, .inputs = {Shard(0), Shard(0)}},
//         {.outputs = {Shard(1)}, .inputs = {Shard(1), Replicate()}}};
//   });
//
// docs/guides/add_an_operator.md explains when a strategy is correct.
// Python: torch.distributed.tensor.experimental.register_sharding.
#pragma once

#include <dtensor/ops/registry.h>

#include <string_view>

namespace dtensor {

/// Sets the sharding rule of operator `name` ("mylib::scale", "mm",
/// "add.Tensor"; namespace aten unless the name has "::"). The in-place form
/// follows the rule, too, unless it has its own. Cached decisions are dropped.
/// A rule without a meta function or without traits keeps those of the rule
/// that it replaces.
///
/// An operator of another library needs a kernel for the device and, for the
/// shapes of its results, a Meta kernel (or OpRule::with_meta). Its gradient is
/// that of the plain operator on the local shards. If an input is replicated
/// while other inputs or the result are sharded, its gradient is the sum over
/// the ranks.
///
/// Call it before ranks run. Throws ValueError if no library has registered the
/// name or if the rule is empty, and RuntimeError inside a rank.
DTENSOR_API void register_sharding(std::string_view name, OpRule rule);

/// The overload for a rule that only lists strategies per mesh dimension.
DTENSOR_API void register_sharding(std::string_view name, DimRule rule);

} // namespace dtensor
