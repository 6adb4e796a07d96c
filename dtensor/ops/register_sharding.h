// SPDX-License-Identifier: BSD-3-Clause
// register_sharding: rules for operators of other libraries, or in place of
// ours.
//
//   // mylib::scale(Tensor x, Tensor factors) -> Tensor, one factor for a row
//   register_sharding("mylib::scale", [](const OpCall&, int64_t) {
//     return Strategies{
//         {.outputs = {Shard(0)}, .inputs = {Shard(0), Shard(0)}},
//         {.outputs = {Shard(1)}, .inputs = {Shard(1), Replicate()}}};
//   });
//
// docs/guides/add_an_operator.md says when a strategy is right.
// Python: torch.distributed.tensor.experimental.register_sharding.
#pragma once

#include <dtensor/ops/registry.h>

#include <string_view>

namespace dtensor {

/// From now on operator `name` ("mylib::scale", "mm", "add.Tensor", in
/// namespace aten unless it has "::") computes on the layouts that `rule`
/// gives, and so does its in-place form if that has no rule of its own. What
/// ranks decided before is forgotten. A rule without a meta function or traits
/// keeps those of the one that it replaces.
///
/// An operator of another library needs a kernel for the device and, for the
/// shapes of its results, one for Meta (or OpRule::with_meta). Its gradient is
/// that of the plain operator on each rank's part: an input that is replicated
/// where others or the result are cut gets the sum of the ranks' gradients.
///
/// Call it before ranks run. Throws ValueError for a name that no library has
/// registered and for a rule without strategies, RuntimeError inside a rank.
DTENSOR_API void register_sharding(std::string_view name, OpRule rule);

/// The same with strategies per mesh dimension.
DTENSOR_API void register_sharding(std::string_view name, DimRule rule);

} // namespace dtensor
