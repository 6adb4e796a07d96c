// SPDX-License-Identifier: BSD-3-Clause
// Ownership checks of groups, meshes and DTensors.
//
// Every object that communicates belongs to the rank that made it: to its
// World, or to the process's world outside of ranks. Groups and meshes keep
// their world alive, so its address identifies the rank, and the check is a
// comparison of pointers. Checks run when an object is first used (in a
// decision, a style, a plan) and in each collective. Later uses hit per-rank
// caches.
#pragma once

#include <c10/macros/Macros.h>
#include <c10/util/FunctionRef.h>
#include <dtensor/api.h>
#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/spec.h>

#include <string>
#include <string_view>

namespace dtensor {
class World;
}

namespace dtensor::detail {

/// Throws RuntimeError unless this thread is the rank `owner`: "[where] what
/// belongs to rank 0, but this is rank 1. ...".
void check_owner(
    std::string_view where,
    c10::function_ref<std::string()> what,
    const World* owner);

/// Returns true if this thread is the rank that made the mesh. This comparison
/// is the fast path of the checks below.
inline bool is_of_this_thread(const DeviceMesh& mesh) {
  return C10_LIKELY(
      static_cast<const MeshState*>(mesh.identity())->world ==
      this_thread.world);
}

/// Throws RuntimeError unless this thread is the rank of the mesh. A mesh
/// without communication has no owner, and passes.
void check_owned_by_this_rank(std::string_view where, const DeviceMesh& mesh);
/// Returns true if check_owned_by_this_rank() would not throw.
bool is_owned_by_this_rank(const DeviceMesh& mesh);
/// Checks a tensor of `spec`, without the fast path. `reads`: the rank of the
/// spec's mesh may have ended.
DTENSOR_INTERNAL_API void
check_spec(std::string_view where, const Spec& spec, bool reads);
/// Throws RuntimeError unless this thread is the rank of the spec's mesh.
inline void check_owned_by_this_rank(std::string_view where, const Spec& spec) {
  if (!is_of_this_thread(spec.mesh())) {
    check_spec(where, spec, /*reads=*/false);
  }
}
/// Like check_owned_by_this_rank(), but passes for tensors of ended ranks, too.
inline void check_readable(std::string_view where, const Spec& spec) {
  if (!is_of_this_thread(spec.mesh())) {
    check_spec(where, spec, /*reads=*/true);
  }
}

} // namespace dtensor::detail
