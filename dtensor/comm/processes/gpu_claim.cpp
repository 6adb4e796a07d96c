// SPDX-License-Identifier: BSD-3-Clause
// Check that no two ranks use the same GPU. NCCL requires a GPU per rank, but
// its errors for a shared GPU are unclear.
#include <dtensor/comm/processes/built_in_backends_impl.h>

#include <dtensor/error.h>

namespace dtensor::detail {

// The claim must not wait for other members: a member may send to another
// before the rest have arrived.
void claim_gpu(
    const GroupMembers& members,
    const RendezvousInfo& place,
    c10::Device gpu,
    const std::string& name) {
  const auto me =
      std::to_string(members.ranks[static_cast<size_t>(members.rank)]);
  const auto has_it = place.store->compareSet("gpu " + name, "", me);
  DTENSOR_CHECK_VALUE(
      has_it == me,
      "[nccl] ranks {} and {} of \"{}\" use the same GPU, which is {} of rank "
      "{}. Select a different GPU in each process before its first collective: "
      "set_device(get_node_local_rank()). Use threads or \"cuda:gloo\" for "
      "ranks that share a GPU.",
      has_it,
      me,
      members.label,
      gpu,
      me);
}

} // namespace dtensor::detail
