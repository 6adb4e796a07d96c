// SPDX-License-Identifier: BSD-3-Clause
// SharedBackend: collectives of processes that share memory, as stages of a
// SharedChannel. Each family of collectives has its own source file
// (shared_reduce.cpp, ...).
#pragma once

#include <dtensor/comm/backend/rank_notes_impl.h>
#include <dtensor/comm/group_backend.h>
#include <dtensor/comm/rank/rank_memory_impl.h>
#include <dtensor/comm/shared_memory/rows_impl.h>
#include <dtensor/comm/shared_memory/shared_arena_impl.h>
#include <dtensor/comm/shared_memory/shared_channel_impl.h>
#include <dtensor/comm/shared_memory/shared_mail_impl.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace dtensor::detail {

/// Returns the signature of a collective over tensors of this dtype. `sizes`
/// must be equal on all members.
SharedSignature sign(CollectiveKind kind, at::ScalarType dtype, SizesRef sizes);

class SharedBackend final : public GroupBackend {
 public:
  SharedBackend(
      GroupMembers members,
      std::unique_ptr<SharedChannel> channel,
      std::shared_ptr<SharedArena> results)
      : GroupBackend(std::move(members)),
        channel_(std::move(channel)),
        results_(std::move(results)),
        mail_(*channel_) {}

  InFlight submit(Collective&& c) override;
  void abandon(const std::string& why) override;
  void set_operator_errors(int64_t total, const std::string& last) override {
    notes_.set_errors(total, last);
  }

 private:
  using Buffer = SharedChannel::Buffer;
  using Sources = std::vector<Source>;
  using Targets = std::vector<Target>;

  // One function per collective.
  at::Tensor all_reduce(const Collective& c);
  at::Tensor all_gather(const Collective& c);
  at::Tensor reduce_scatter(const Collective& c);
  at::Tensor shard_dim_alltoall(const Collective& c);
  at::Tensor exchange_buffer(const Collective& c);
  std::vector<at::Tensor> all_to_all(Collective& c);
  at::Tensor broadcast(const Collective& c);
  at::Tensor recv(const Collective& c);
  void barrier(const Collective& c);

  /// Runs `body`. If it throws, marks the collective as failed for all members.
  /// A ValueError does not mark the collective, because all members throw it
  /// together.
  template <typename Body>
  auto collective(CollectiveKind kind, const Body& body);
  void report_failure(const std::exception_ptr& failure);
  void check_cpu(const Collective& c) const;

  /// Posts the next stage. The first stage of a collective (`at` == 0) carries
  /// `signature`, with the number of noted errors.
  void post(int64_t at, const SharedSignature& signature);
  /// Waits until all members have posted the stage. In the first stage, throws
  /// ValueError on all members if their signatures differ.
  void meet(int64_t at, const Collective& c);
  std::vector<std::string> gather_texts(const std::string& mine);
  [[noreturn]] void disagree(const Collective& c);

  /// Returns the size in bytes of the slice of `buffer` that is reserved for
  /// each of the other members.
  int64_t lane(Buffer buffer) const;
  std::byte* lane_of(Buffer buffer, int64_t writer, int64_t reader) const {
    const int64_t number = reader < writer ? reader : reader - 1;
    return channel_->buffer(buffer, writer) + number * lane(buffer);
  }

  at::Tensor reduce_in_notice(const Collective& c);
  at::Tensor reduce_in_parts(const Collective& c);
  void reduce_parts(
      const SharedSignature& signature,
      const Sources& parts,
      const at::Tensor& out,
      const Collective& c);
  /// Returns the sizes of all members along `dim`: `c.sizes`, or the gathered
  /// sizes if `c.sizes` is empty.
  Sizes known_sizes(const Collective& c);
  /// Gathers by writing directly to the results of all members. `shown` is this
  /// member's result in its arena. Returns false unless every member has a
  /// result in an arena.
  bool gather_to_all(
      const SharedSignature& signature,
      const Source& mine,
      const Targets& targets,
      const at::Tensor& shown,
      const Collective& c);
  void gather_rows(
      const SharedSignature& signature,
      const Source& mine,
      const Targets& targets,
      const Collective& c);
  void exchange_rows(
      const SharedSignature& signature,
      const Sources& sources,
      const Targets& targets,
      const Collective& c);
  /// Exchanges the data that did not fit behind the tables, in rounds.
  /// `longest` is the largest number of bytes for one member. `sources` is
  /// empty if this member has nothing left to send.
  void exchange_blocks(
      const Sources& sources,
      const Targets& targets,
      const std::vector<bool>& is_done,
      int64_t longest);

  std::unique_ptr<SharedChannel> channel_;
  /// This member's arena. Tensors allocated from the arena share its ownership.
  std::shared_ptr<SharedArena> results_;
  SharedMail mail_;
  /// Errors of operators so far. Part of each signature.
  RankNotes notes_;
};

template <typename Body>
auto SharedBackend::collective(CollectiveKind kind, const Body& body) {
  channel_->enter(kind);
  try {
    return body();
  } catch (const c10::ValueError&) {
    throw; // all members throw it
  } catch (...) {
    report_failure(std::current_exception());
    throw;
  }
}

} // namespace dtensor::detail
