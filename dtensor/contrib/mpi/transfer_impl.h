// SPDX-License-Identifier: BSD-3-Clause
// MpiChannel: the communicator of a group. MpiTransfer: outstanding MPI calls,
// and the memory that they use.
#pragma once

#include <c10/util/FunctionRef.h>
#include <dtensor/comm/backends.h>
#include <dtensor/comm/transport_backend.h>
#include <dtensor/contrib/mpi/runtime_impl.h>
#include <mpi.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace dtensor::mpi {

/// The communicator of one group, and the waits of its members.
class MpiChannel final : public MpiFailureListener {
 public:
  /// All members call this constructor. Throws RuntimeError if some members do
  /// not arrive in time.
  MpiChannel(const GroupMembers& members, const RendezvousInfo& place);
  ~MpiChannel() override;
  MpiChannel(const MpiChannel&) = delete;
  MpiChannel& operator=(const MpiChannel&) = delete;

  MPI_Comm get() const {
    return communicator_;
  }

  /// Polls `done` and returns once it is true. Throws RuntimeError at the
  /// timeout, and if a member has reported a failure.
  void wait(c10::function_ref<bool()> done);

  /// Reports to the other members that this rank has failed.
  void report_failure() noexcept;

 private:
  void world_failed() noexcept override {
    report_failure();
  }
  void meet(const GroupMembers& members);
  void make_communicator(const GroupMembers& members);

  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
  bool one_core_per_member_; // each member on this host can have a core of its
                             // own
  MPI_Comm communicator_ = MPI_COMM_NULL;
};

/// MPI requests, and the memory that MPI reads and writes until all requests
/// are done.
class MpiRequests final : public MpiWork {
 public:
  std::vector<at::Tensor> tensors;
  std::vector<int> counts;
  std::vector<int> offsets;

  void add(MPI_Request request) {
    all_.push_back(request);
  }
  bool test() noexcept override;
  /// Result of the last test: MPI_SUCCESS, or the error that ended the work.
  int code() const {
    return code_;
  }

 private:
  std::mutex mutex_;
  std::vector<MPI_Request> all_;
  size_t done_ = 0; // number of finished requests, from the front
  int code_ = MPI_SUCCESS;
};

class MpiTransfer final : public Transfer {
 public:
  MpiTransfer(
      std::shared_ptr<MpiChannel> channel,
      std::vector<at::Tensor> tensors)
      : channel_(std::move(channel)),
        requests_(std::make_shared<MpiRequests>()) {
    requests_->tensors = std::move(tensors);
  }
  /// Hands unfinished requests to the helper thread.
  ~MpiTransfer() override;

  /// Calls `call(communicator, request)`, a non-blocking function of MPI.
  template <typename Call>
  void begin(const char* name, const Call& call) {
    const auto turn = MpiRuntime::get().turn();
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(call(channel_->get(), &request), name);
    requests_->add(request);
  }

  /// Calls begin() for `count` elements in segments of at most `most` elements.
  /// `call` also gets the offset and the length of its segment.
  template <typename Call>
  void begin_pieces(
      const char* name,
      int64_t count,
      int64_t most,
      const Call& call) {
    for (int64_t first = 0; first < count; first += most) {
      const int length = static_cast<int>(std::min(most, count - first));
      begin(name, [&](MPI_Comm communicator, MPI_Request* request) {
        return call(first, length, communicator, request);
      });
    }
  }

  MpiRequests& requests() {
    return *requests_;
  }

  void wait() override;
  void progress_in_background() override;

 private:
  std::shared_ptr<MpiChannel> channel_;
  std::shared_ptr<MpiRequests> requests_; // null: done
  bool is_watched_ = false;
};

} // namespace dtensor::mpi
