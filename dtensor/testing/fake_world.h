// SPDX-License-Identifier: BSD-3-Clause
// with_fake_world: runs one rank of a large world, without the other ranks, to
// measure and test the work of that rank.
//
//   testing::with_fake_world(0, 256, [] {
//     auto mesh = init_device_mesh(torch::kCPU, {256});
//     auto x = dtensor::zeros({256, 8}, mesh, {Shard(0)});
//     DTensor(x).full_tensor();   // shape (256, 8), without communication
//   });
//
// Python: torch.distributed.init_process_group("fake").
#pragma once

#include <dtensor/api.h>

#include <cstdint>
#include <functional>

namespace dtensor::testing {

/// Runs `fn` in this thread as rank `rank` of `world_size` ranks; the other
/// ranks do not exist. Collectives return at once. Their results have the shape
/// that they would have if all ranks passed tensors of this rank's shapes.
/// Reductions return this rank's own values. all_gather returns zeros, and so
/// do collectives that receive another rank's tensor (broadcast, scatter,
/// recv). Throws ValueError for a rank outside the world, RuntimeError if
/// called inside a rank.
DTENSOR_API void with_fake_world(
    int64_t rank,
    int64_t world_size,
    const std::function<void()>& fn);

} // namespace dtensor::testing
