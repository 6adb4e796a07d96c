// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/backends.h>

#include <dtensor/comm/processes/built_in_backends_impl.h>
#include <dtensor/comm/shared_memory/shared_memory_backend_impl.h>
#include <dtensor/error.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <map>
#include <mutex>

namespace dtensor {
namespace {

GroupBackendPtr make_shm(GroupMembers members, const RendezvousInfo& place) {
  DTENSOR_CHECK_VALUE(
      place.is_on_one_host(),
      "[shm] the ranks of \"{}\" are on several hosts, which do not share "
      "memory. Use \"gloo\".",
      members.label);
  return detail::shared_memory_backend(
      std::move(members), place.store, {.timeout = place.timeout});
}

// Makes shm, or `otherwise` if this host has no shared memory (for example
// under ulimit -f).
GroupBackendPtr make_shm_or(
    const GroupMembers& members,
    const RendezvousInfo& place,
    const MakeBackend& otherwise) {
  try {
    return make_shm(members, place);
  } catch (const detail::NoSharedMemory& error) {
    if (members.rank == 0) {
      TORCH_WARN(detail::format_text(
          "{} Falling back to the inter-host backend for \"{}\".",
          error.what_without_backtrace(),
          members.label));
    }
  }
  RendezvousInfo own = place;
  own.store =
      c10::make_intrusive<c10d::PrefixStore>("without memory", place.store);
  return otherwise(members, own);
}

// Uses shared memory within a host, and `between_hosts` between hosts.
GroupBackendPtr make_in_levels(
    GroupMembers members,
    const RendezvousInfo& place,
    const MakeBackend& between_hosts) {
  const auto size = static_cast<int64_t>(members.ranks.size());
  if (place.is_on_one_host() && size <= detail::kMostMembers) {
    return make_shm_or(members, place, between_hosts);
  }
  if (!detail::is_regular(place)) {
    return between_hosts(std::move(members), place);
  }
  const auto within = [&](GroupMembers some, const RendezvousInfo& host) {
    return make_in_levels(std::move(some), host, between_hosts);
  };
  return detail::hierarchical_backend(
      std::move(members), place, within, between_hosts);
}

MakeBackend hierarchical(const MakeBackend& between_hosts) {
  return [between_hosts](GroupMembers members, const RendezvousInfo& place) {
    return make_in_levels(std::move(members), place, between_hosts);
  };
}

struct Backends {
  std::mutex mutex;
  std::map<std::string, MakeBackend> by_name{
      {"auto", hierarchical(detail::make_gloo)},
      {"fake",
       [](GroupMembers members, const RendezvousInfo& /*place*/) {
         return detail::fake_backend(std::move(members));
       }},
      {"gloo", detail::make_gloo},
      {"hierarchical", hierarchical(detail::make_gloo)},
      {"hierarchical-mpi", hierarchical(detail::make_mpi)},
      {"mpi", detail::make_mpi},
      {"mpich", detail::make_mpi},
      {"nccl", detail::make_nccl},
      {"openmpi", detail::make_mpi},
      {"shm", make_shm}};
};

Backends& backends() {
  static auto* all = new Backends;
  return *all;
}

} // namespace

bool RendezvousInfo::is_on_one_host() const {
  return std::ranges::all_of(
      hosts, [&](const std::string& host) { return host == hosts.front(); });
}

void register_backend(const std::string& name, MakeBackend make) {
  DTENSOR_CHECK_VALUE(
      !name.empty() && name.find_first_of(",:") == std::string::npos,
      "[register_backend] invalid backend name: \"{}\". Use a name without "
      "commas or colons.",
      name);
  auto& all = backends();
  const std::lock_guard lock(all.mutex);
  DTENSOR_CHECK_VALUE(
      all.by_name.emplace(name, std::move(make)).second,
      "[register_backend] backend \"{}\" is already registered. Use another "
      "name.",
      name);
}

std::string detail::backend_names() {
  auto& all = backends();
  const std::lock_guard lock(all.mutex);
  std::string names;
  for (const auto& [name, make] : all.by_name) {
    names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

MakeBackend detail::find_backend(const std::string& name) {
  auto& all = backends();
  const std::lock_guard lock(all.mutex);
  const auto found = all.by_name.find(name);
  return found == all.by_name.end() ? nullptr : found->second;
}

} // namespace dtensor
