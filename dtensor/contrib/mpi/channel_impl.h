// SPDX-License-Identifier: BSD-3-Clause
// MpiChannel: the communicator of one group, and the waiting of its members.
#pragma once

#include <dtensor/comm/backends.h>
#include <dtensor/contrib/mpi/runtime_impl.h>

#include <c10/util/FunctionRef.h>
#include <mpi.h>

namespace dtensor::mpi {

class MpiChannel final : public MpiFailureListener {
 public:
  /// All members call it. Throws RuntimeError if some do not arrive in time.
  MpiChannel(const GroupMembers& members, const RendezvousInfo& place);
  ~MpiChannel() override;
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;

  MPI_Comm get() const {
    return communicator_;
  }

  /// Returns once `done` holds; it is polled. Throws RuntimeError at the
  /// timeout, and if a member has reported a failure.
  void wait(c10::function_ref<bool()> done);

  /// Reports to the other members that this rank does not go on.
  void tell_failure() noexcept;

 private:
  void world_failed() noexcept override {
    tell_failure();
  }
  void meet(const GroupMembers& members);
  void make_communicator(const GroupMembers& members);

  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
  bool one_core_per_member_; // each member on this host can have a core of its
                             // own
  MPI_Comm communicator_ = MPI_COMM_NULL;
};

} // namespace dtensor::mpi
