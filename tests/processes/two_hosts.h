// SPDX-License-Identifier: BSD-3-Clause
// Backends that treat the ranks of one host as if they were on two hosts.
#pragma once

#include <dtensor/comm/backends.h>
#include <dtensor/comm/processes/built_in_backends_impl.h>
#include <dtensor/comm/run_world.h>

#include <string>
#include <utility>

namespace dtensor::test {

/// Returns a backend factory that uses `regular` for groups with equally many
/// ranks on each host, and `otherwise` for other groups.
inline MakeBackend on_two_hosts(
    const std::string& regular,
    const std::string& otherwise) {
  return [=](GroupMembers members, RendezvousInfo place) {
    for (size_t i = 0; i < place.hosts.size(); ++i) {
      place.hosts[i] = members.ranks[i] % 2 == 0 ? "oak" : "elm";
    }
    const auto make =
        detail::find_backend(detail::is_regular(place) ? regular : otherwise);
    return make(std::move(members), place);
  };
}

/// Initializes MPI, which a world does automatically only for built-in names.
inline GroupBackendPtr on_two_hosts_by_mpi(
    GroupMembers members,
    const RendezvousInfo& place) {
  const auto me = launched();
  detail::load_mpi("mpi");
  detail::begin_mpi(me->rank, me->size);
  return on_two_hosts("hierarchical-mpi", "mpi")(std::move(members), place);
}

/// Registers the backends "two_hosts" and "two_hosts_mpi".
inline void register_two_hosts() {
  register_backend("two_hosts", on_two_hosts("hierarchical", "gloo"));
  register_backend("two_hosts_mpi", on_two_hosts_by_mpi);
}

} // namespace dtensor::test
