// SPDX-License-Identifier: BSD-3-Clause
// TransportBackend: a backend whose transport begins collectives and completes
// them later. All other collectives are built on the eight functions that a
// derived class implements; each returns an InFlight with the Transfer to wait
// for. For a transport whose functions wait, BufferBackend
// (comm/buffer_backend.h) is simpler. The module for MPI (dtensor/contrib/mpi)
// is an example.
#pragma once

#include <dtensor/api.h>
#include <dtensor/comm/group_backend.h>

#include <exception>
#include <memory>
#include <string>
#include <string_view>

namespace dtensor {

class DTENSOR_API TransportBackend
    : public GroupBackend,
      public std::enable_shared_from_this<TransportBackend> {
 public:
  using GroupBackend::GroupBackend;

  InFlight submit(Collective&& collective) override;

 protected:
  // Functions that begin a primitive, or a barrier. Inputs, results and counts
  // are those of the functions of BufferBackend.

  /// May overwrite its input if c.owns_input().
  virtual InFlight begin_all_reduce(const Collective& c) = 0;
  virtual InFlight begin_all_gather(const Collective& c) = 0;
  virtual InFlight begin_all_to_all(const Collective& c) = 0;
  virtual InFlight begin_broadcast(const Collective& c) = 0;
  virtual InFlight begin_send(const Collective& c) = 0;
  virtual InFlight begin_recv(const Collective& c) = 0;
  virtual InFlight begin_barrier() = 0;
  /// In the default, every member receives its shard from all others and
  /// combines them in rank order. The default moves the fewest bytes possible,
  /// in one step, and supports every dtype.
  virtual InFlight begin_reduce_scatter(const Collective& c);
  /// Begins an all_reduce of any dtype and operation. Every member gathers all
  /// terms of a small tensor or an asynchronous collective. Otherwise each
  /// member combines one shard for all, so that the bytes sent do not grow with
  /// the group.
  InFlight begin_combined_all_reduce(const Collective& primitive);

  /// Returns the name of the transport in messages.
  virtual std::string carrier() const = 0;
  /// Throws if the transport cannot carry `collective`.
  virtual void check(const Collective& /*collective*/) const {}
  /// Records that this rank failed in a collective.
  virtual void note_failure() noexcept {}

 private:
  InFlight begin_gathered_all_reduce(const Collective& primitive);
  InFlight begin_scattered_all_reduce(const Collective& primitive);
  InFlight begin(const Collective& primitive);
  /// Calls begin(). Errors get the collective and the group, except a
  /// ValueError, which is an error of the program.
  InFlight begin_named(Collective&& primitive);
  [[noreturn]] void fail(std::string_view name, const std::exception& error);
};

} // namespace dtensor
