// SPDX-License-Identifier: BSD-3-Clause
// Measured costs of the collectives of a mesh.
#pragma once

#include <dtensor/comm/init_device_mesh.h>

#include <map>
#include <string>

namespace dtensor {

/// Measures latency and bandwidth of the collectives along each dimension of
/// `mesh`, and returns them under the keys of MeshOptions::cost, equal on all
/// ranks of the mesh:
///
///   auto mesh = init_device_mesh(torch::kCPU, {2, 4}, {"dp", "tp"});
///   mesh = init_device_mesh(torch::kCPU, {2, 4}, {"dp", "tp"},
///                           {.cost = measure_costs(mesh)});
///
/// All ranks of the mesh must call this function; a rank outside the mesh gets
/// an empty map. Runs about 100 collectives per dimension, of 8 bytes and of 4
/// MiB, in batches, and takes the time of the fastest batch on the slowest
/// rank. All groups along a dimension run them at the same time. The map has no
/// entry for a dimension of one rank. Throws RuntimeError for a mesh without
/// groups.
DTENSOR_API std::map<std::string, LinkCost> measure_costs(
    const DeviceMesh& mesh);

} // namespace dtensor
