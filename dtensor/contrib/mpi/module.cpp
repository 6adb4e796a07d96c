// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/comm/mpi_module.h>

#include <dtensor/contrib/mpi/mpi_group_impl.h>

namespace dtensor::mpi {
namespace {

GroupBackendPtr make(GroupMembers members, const RendezvousInfo& place) {
  auto channel = std::make_shared<MpiChannel>(members, place);
  return std::make_shared<MpiGroup>(std::move(members), std::move(channel));
}

constexpr MpiModule kModule{
    .begin = [](int64_t rank,
                int64_t size) { MpiRuntime::get().begin(rank, size); },
    .end = [](bool has_failed) { MpiRuntime::get().end(has_failed); },
    .make = make};

} // namespace
} // namespace dtensor::mpi

extern "C" DTENSOR_API const dtensor::MpiModule* dtensor_mpi_module() {
  return &dtensor::mpi::kModule;
}
