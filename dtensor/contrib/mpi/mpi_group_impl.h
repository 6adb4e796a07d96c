// SPDX-License-Identifier: BSD-3-Clause
// MpiGroup: collectives over one implementation of MPI. All of these
// collectives use MPI's non-blocking calls internally, so that the group's
// timeout holds. MpiChannel: the communicator of a group. MpiTransfer:
// outstanding MPI calls, and the memory that they use.
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
class MpiChannel {
 public:
  /// All members call this constructor. Throws RuntimeError if some members do
  /// not arrive in time.
  MpiChannel(const GroupMembers& members, const RendezvousInfo& place);
  ~MpiChannel();
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
  void meet(const GroupMembers& members);
  void make_communicator(const GroupMembers& members);

  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds timeout_;
  // Each member on this host can have a core of its own.
  bool one_core_per_member_;
  MPI_Comm communicator_ = MPI_COMM_NULL;
};

/// MPI requests, and the memory that MPI reads and writes until all requests
/// are done.
class MpiRequests {
 public:
  std::vector<at::Tensor> tensors;
  std::vector<int> counts;
  std::vector<int> offsets;

  void add(MPI_Request request) {
    all_.push_back(request);
  }
  /// Lets MPI make progress. Returns true once all requests have ended.
  /// Thread-safe.
  bool test() noexcept;
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

/// Range of bytes in memory.
struct Span {
  char* begin;
  int64_t bytes;
};
using Spans = std::vector<Span>; // one for each member

class MpiGroup final : public TransportBackend {
 public:
  MpiGroup(GroupMembers members, std::shared_ptr<MpiChannel> channel)
      : TransportBackend(std::move(members)),
        channel_(std::move(channel)) {}

 protected:
  InFlight begin_all_reduce(const Collective& c) override;
  InFlight begin_all_gather(const Collective& c) override;
  InFlight begin_all_to_all(const Collective& c) override;
  InFlight begin_broadcast(const Collective& c) override;
  InFlight begin_send(const Collective& c) override;
  InFlight begin_recv(const Collective& c) override;
  InFlight begin_barrier() override;

  std::string carrier() const override {
    return "MPI";
  }
  void note_failure() noexcept override;

 private:
  std::shared_ptr<MpiTransfer> transfer_of(std::vector<at::Tensor> tensors);
  void
  begin_messages(MpiTransfer& transfer, const Spans& to, const Spans& from);
  void begin_gather(
      MpiTransfer& transfer,
      const at::Tensor& input,
      const at::Tensor& result,
      SizesRef counts);
  int checked_tag(std::string_view where, int64_t tag) const;

  std::shared_ptr<MpiChannel> channel_;
};

} // namespace dtensor::mpi
