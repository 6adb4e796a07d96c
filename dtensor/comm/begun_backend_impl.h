// SPDX-License-Identifier: BSD-3-Clause
// BegunBackend: a backend that says how each collective is begun. What is
// called begins one and waits for it at once, or, by start(), later.
#pragma once

#include <dtensor/comm/group_backend.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace dtensor::detail {

/// Data that are under way.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Returns once they are here.
  virtual void wait() = 0;
  /// Nobody waits for them yet, while others may for what this rank gives.
  virtual void leave_alone() {}
};

/// A collective that is under way: `finish` makes the result once the data are
/// here.
struct Begun {
  std::shared_ptr<Transfer> transfer; // null: there was nothing to do
  std::function<at::Tensor()> finish;
};

class BegunBackend : public GroupBackend,
                     public std::enable_shared_from_this<BegunBackend> {
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

  /// Waits, and gives errors their place.
  at::Tensor end(std::string_view name, const Begun& begun);

 protected:
  virtual Begun begin_all_reduce(const at::Tensor& input, ReduceOp op) = 0;
  /// The same of a tensor that may be written to. By default it is not.
  virtual Begun begin_all_reduce_in_place(
      const at::Tensor& tensor,
      ReduceOp op) {
    return begin_all_reduce(tensor, op);
  }
  virtual Begun begin_all_gather(const at::Tensor& input, SizesRef counts) = 0;
  virtual Begun begin_all_to_all(
      const at::Tensor& input,
      SizesRef sent,
      SizesRef received) = 0;
  virtual Begun begin_broadcast(const at::Tensor& input, int64_t root) = 0;
  virtual Begun
  begin_send(const at::Tensor& input, int64_t to, int64_t tag) = 0;
  virtual Begun
  begin_recv(const at::Tensor& like, int64_t from, int64_t tag) = 0;

  /// Every member gets its part from all others, and combines them in rank
  /// order: as many bytes as any way must move, in one step, for every dtype.
  virtual Begun
  begin_reduce_scatter(const at::Tensor& input, SizesRef counts, ReduceOp op);
  /// The same for an all_reduce: everybody gets all terms.
  Begun begin_gathered_all_reduce(const at::Tensor& input, ReduceOp op);

  /// What messages call it.
  virtual std::string carrier() const = 0;
  /// Throws if `input` cannot be given to a collective.
  virtual void check_input(
      std::string_view /*name*/,
      const at::Tensor& /*input*/) const {}
  /// This rank's part of a collective has failed.
  virtual void note_failure() noexcept {}

  /// begin(), but that errors get their place. A ValueError is the program's.
  template <typename Begin>
  Begun
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
  /// Throws RuntimeError: what has gone wrong, and where.
  [[noreturn]] void fail(std::string_view name, const std::exception& error);

  Begun begin(const AsyncCollective& collective);
  Begun begin_gather_along(const AsyncCollective& collective);
  Begun begin_reduce_scatter_along(const AsyncCollective& collective);
  Begun begin_shard_dim_alltoall(const AsyncCollective& collective);
};

} // namespace dtensor::detail
