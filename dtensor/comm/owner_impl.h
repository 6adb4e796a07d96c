// SPDX-License-Identifier: BSD-3-Clause
// Whose a group, a mesh or a DTensor is.
//
// Everything that communicates belongs to the rank that made it: to its World,
// which is the process's own where it was made outside of ranks. Groups and
// meshes hold their world, so that its address means that rank for as long as
// anybody asks: the check is a comparison of pointers. It stands where
// something is seen for the first time (a decision, a style, a plan) and in
// each collective; what a rank has seen before is found in caches of its own.
#pragma once

#include <c10/macros/Macros.h>
#include <c10/util/FunctionRef.h>
#include <dtensor/api.h>
#include <dtensor/comm/rank_local_impl.h>
#include <dtensor/layout/mesh_state_impl.h>
#include <dtensor/layout/spec.h>

#include <string>
#include <string_view>

namespace dtensor {
class World;
}

namespace dtensor::detail {

/// Throws RuntimeError unless this thread is that rank: "[where] what belongs
/// to rank 0, and this is rank 1. ...".
void check_owner(
    std::string_view where,
    c10::function_ref<std::string()> what,
    const World* owner);

/// Whether this thread is the very rank that made the mesh: all that is asked
/// where ranks use what is theirs.
inline bool is_of_this_thread(const DeviceMesh& mesh) {
  return C10_LIKELY(
      static_cast<const MeshState*>(mesh.identity())->world ==
      this_thread.world);
}

/// Throws RuntimeError unless this thread is the rank of the mesh. A mesh
/// without communication is nobody's.
DTENSOR_API void check_mine(std::string_view where, const DeviceMesh& mesh);
/// Whether it would not.
bool is_mine(const DeviceMesh& mesh);
/// The same for a tensor of that spec, in full.
DTENSOR_API void
check_spec(std::string_view where, const Spec& spec, bool reads);
/// The same.
inline void check_mine(std::string_view where, const Spec& spec) {
  if (!is_of_this_thread(spec.mesh())) {
    check_spec(where, spec, /*reads=*/false);
  }
}
/// The same, but what ranks that have ended left behind may be read.
inline void check_readable(std::string_view where, const Spec& spec) {
  if (!is_of_this_thread(spec.mesh())) {
    check_spec(where, spec, /*reads=*/true);
  }
}

} // namespace dtensor::detail
