// SPDX-License-Identifier: BSD-3-Clause
// MpiGroup: collectives over one implementation of MPI. All of these
// collectives use MPI's non-blocking calls internally, so that the group's
// timeout holds.
#pragma once

#include <dtensor/contrib/mpi/transfer_impl.h>

#include <memory>
#include <utility>
#include <vector>

namespace dtensor::mpi {

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
  /// Range of bytes in memory.
  struct Span {
    char* begin;
    int64_t bytes;
  };
  using Spans = std::vector<Span>; // one for each member

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
