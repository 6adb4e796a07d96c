// SPDX-License-Identifier: BSD-3-Clause
// AsyncBackend: base of backends that implement how each collective is begun.
// Synchronous functions begin a collective and wait for it; start() defers the
// wait.
#pragma once

#include <dtensor/comm/group_backend.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {

/// Data in flight.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Returns once the data have arrived.
  virtual void wait() = 0;
  /// Marks that this rank does not wait yet, while peers may need its data.
  virtual void progress_in_background() {}
};

/// A collective in flight. `finish` makes the result once the data have
/// arrived.
struct InFlight {
  std::shared_ptr<Transfer> transfer; // null: no transfer needed
  std::function<at::Tensor()> finish;
};

class AsyncBackend : public GroupBackend,
                     public std::enable_shared_from_this<AsyncBackend> {
 public:
  using GroupBackend::GroupBackend;

  at::Tensor all_reduce(const at::Tensor& input, ReduceOp op) override;
  at::Tensor all_reduce_in_place(const at::Tensor& tensor, ReduceOp op)
      override;
  at::Tensor all_gather(const at::Tensor& input, SizesRef counts) override;
  at::Tensor reduce_scatter(
      const at::Tensor& input,
      SizesRef counts,
      ReduceOp op) override;
  at::Tensor all_to_all(
      const at::Tensor& input,
      SizesRef sent,
      SizesRef received) override;
  at::Tensor broadcast(const at::Tensor& input, int64_t root) override;
  void send(const at::Tensor& input, int64_t to, int64_t tag) override;
  at::Tensor recv(const at::Tensor& like, int64_t from, int64_t tag) override;
  PendingPtr start(AsyncCollective collective) override;

  /// Waits and finishes the collective. Errors get its name and the group.
  at::Tensor end(std::string_view name, const InFlight& begun);

 protected:
  virtual InFlight begin_all_reduce(const at::Tensor& input, ReduceOp op) = 0;
  /// Begins an all_reduce of a tensor that may be overwritten. The default does
  /// not overwrite it.
  virtual InFlight begin_all_reduce_in_place(
      const at::Tensor& tensor,
      ReduceOp op) {
    return begin_all_reduce(tensor, op);
  }
  virtual InFlight begin_all_gather(
      const at::Tensor& input,
      SizesRef counts) = 0;
  virtual InFlight begin_all_to_all(
      const at::Tensor& input,
      SizesRef sent,
      SizesRef received) = 0;
  virtual InFlight begin_broadcast(const at::Tensor& input, int64_t root) = 0;
  virtual InFlight
  begin_send(const at::Tensor& input, int64_t to, int64_t tag) = 0;
  virtual InFlight
  begin_recv(const at::Tensor& like, int64_t from, int64_t tag) = 0;

  /// Begins a reduce_scatter. Every member receives its shard from all others
  /// and combines them in rank order. This moves the fewest bytes possible, in
  /// one step, and supports every dtype.
  virtual InFlight
  begin_reduce_scatter(const at::Tensor& input, SizesRef counts, ReduceOp op);
  /// Begins an all_reduce in which every member gathers all terms.
  InFlight begin_gathered_all_reduce(const at::Tensor& input, ReduceOp op);

  /// Name of the transport in messages.
  virtual std::string carrier() const = 0;
  /// Throws if a collective cannot take `input`.
  virtual void check_input(
      std::string_view /*name*/,
      const at::Tensor& /*input*/) const {}
  /// Records that this rank failed in a collective.
  virtual void note_failure() noexcept {}

  /// Calls begin(). Errors get the collective and the group, except a
  /// ValueError, which is an error of the program.
  template <typename Begin>
  InFlight
  begun(std::string_view name, const at::Tensor& input, const Begin& begin) {
    check_input(name, input);
    try {
      return begin();
    } catch (const c10::ValueError&) {
      throw;
    } catch (const std::exception& error) {
      fail(name, error);
    }
  }

 private:
  /// Throws RuntimeError with the error's message, the collective and the
  /// group.
  [[noreturn]] void fail(std::string_view name, const std::exception& error);

  InFlight begin(const AsyncCollective& collective);
  InFlight begin_gather_along(const AsyncCollective& collective);
  InFlight begin_reduce_scatter_along(const AsyncCollective& collective);
  InFlight begin_shard_dim_alltoall(const AsyncCollective& collective);
};

} // namespace dtensor::detail
