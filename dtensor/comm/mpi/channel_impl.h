// SPDX-License-Identifier: BSD-3-Clause
// MpiChannel: the communicator of one group, and how its members wait.
#pragma once

#include <dtensor/comm/backends.h>
#include <dtensor/comm/mpi/runtime_impl.h>

#include <c10/util/FunctionRef.h>
#include <mpi.h>

namespace dtensor::detail {

class MpiChannel final : public MpiFailureListener {
 public:
  /// All members call it. Throws RuntimeError if they do not come in time.
  MpiChannel(const GroupMembers& members, const MeetingPlace& place);
  ~MpiChannel() override;
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;

  MPI_Comm get() const {
    return communicator_;
  }

  /// Returns once `done` holds, which it asks again and again. Throws
  /// RuntimeError at the timeout, and when a member has told a failure.
  void wait(c10::function_ref<bool()> done);

  /// Tells the others that this rank does not go on.
  void tell_failure() noexcept;

 private:
  void world_failed() noexcept override {
    tell_failure();
  }
  void meet(const GroupMembers& members);

  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
  bool fits_; // each member of this host can have a core
  MPI_Comm communicator_ = MPI_COMM_NULL;
};

} // namespace dtensor::detail
