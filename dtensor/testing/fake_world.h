// SPDX-License-Identifier: BSD-3-Clause
// One rank of a large world without the others, for measuring and testing what
// a rank does by itself.
//
//   testing::with_fake_world(0, 256, [] {
//     auto mesh = init_device_mesh(torch::kCPU, {256});
//     auto x = dtensor::zeros({256, 8}, mesh, {Shard(0)});
//     DTensor(x).full_tensor();   // shape (256, 8), nothing was communicated
//   });
//
// Python: torch.distributed.init_process_group("fake").
#pragma once

#include <dtensor/api.h>

#include <cstdint>
#include <functional>

namespace dtensor::testing {

/// Runs `fn` in this thread as rank `rank` of `world_size` ranks of which no
/// other exists. Collectives return at once, with results of the shape that
/// they have when all ranks give tensors of the same shapes. Reductions return
/// this rank's own values; all_gather, and what another rank would have sent
/// from its own tensors (broadcast, scatter, recv), zeros.
/// Throws ValueError for a rank outside the world, RuntimeError when called
/// from inside a rank.
DTENSOR_API void with_fake_world(
    int64_t rank,
    int64_t world_size,
    const std::function<void()>& fn);

} // namespace dtensor::testing
