// SPDX-License-Identifier: BSD-3-Clause
// C10dGroup: c10d_group()'s backend. Each collective is begun, which gives
// c10d's Work and what makes a result of it; synchronous ones end it at once.
#pragma once

#include <dtensor/comm/c10d_group.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <exception>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

namespace dtensor::detail {

/// A collective that is under way: `finish` makes the result once `work` is
/// done.
struct Started {
  c10::intrusive_ptr<c10d::Work> work; // null: there was nothing to do
  std::function<at::Tensor()> finish;
};

class C10dGroup final : public GroupBackend,
                        public std::enable_shared_from_this<C10dGroup> {
 public:
  C10dGroup(
      GroupMembers members,
      c10::intrusive_ptr<c10d::Backend> backend,
      c10::Device device)
      : GroupBackend(std::move(members), {.device = device}),
        backend_(std::move(backend)),
        is_nccl_(backend_->getBackendName() == "nccl") {}

  at::Tensor all_reduce(const at::Tensor& input, ReduceOp op) override {
    return end(
        "all_reduce", input, [&] { return begin_all_reduce(input, op); });
  }
  at::Tensor all_gather(const at::Tensor& input, SizesRef counts) override {
    return end(
        "all_gather", input, [&] { return begin_all_gather(input, counts); });
  }
  at::Tensor reduce_scatter(
      const at::Tensor& input,
      SizesRef counts,
      ReduceOp op) override {
    return end("reduce_scatter", input, [&] {
      return begin_reduce_scatter(input, counts, op);
    });
  }
  at::Tensor all_to_all(
      const at::Tensor& input,
      SizesRef sent,
      SizesRef received) override {
    return end("all_to_all", input, [&] {
      return begin_all_to_all(input, sent, received);
    });
  }
  at::Tensor broadcast(const at::Tensor& input, int64_t root) override {
    return end(
        "broadcast", input, [&] { return begin_broadcast(input, root); });
  }
  void send(const at::Tensor& input, int64_t to, int64_t tag) override {
    end("send", input, [&] { return begin_send(input, to, tag); });
  }
  at::Tensor recv(const at::Tensor& like, int64_t from, int64_t tag) override {
    return end("recv", like, [&] { return begin_recv(like, from, tag); });
  }
  void barrier() override {
    end("barrier", {}, [&]() -> Started {
      return {backend_->barrier(), [] { return at::Tensor(); }};
    });
  }

  PendingPtr start(AsyncCollective collective) override;

  at::Tensor wait_for(std::string_view name, const Started& started);

 private:
  // Begins, waits, and gives errors their place.
  template <typename Begin>
  at::Tensor
  end(std::string_view name, const at::Tensor& input, const Begin& begin) {
    return wait_for(name, begun(name, input, begin));
  }
  template <typename Begin>
  Started
  begun(std::string_view name, const at::Tensor& input, const Begin& begin) {
    check_device(name, input);
    try {
      return begin();
    } catch (const c10::ValueError&) {
      throw; // ours, of arguments
    } catch (const std::exception& error) {
      fail(name, error);
    }
  }
  [[noreturn]] void fail(std::string_view name, const std::exception& error)
      const;

  /// Throws ValueError for a tensor that is not where the backend communicates
  /// from. (One of the CPU may know other devices too.)
  void check_device(std::string_view name, const at::Tensor& tensor) const;

  Started begin(const AsyncCollective& collective);
  Started begin_gather_along(const AsyncCollective& collective);
  Started begin_reduce_scatter_along(const AsyncCollective& collective);
  Started begin_shard_dim_alltoall(const AsyncCollective& collective);
  Started begin_all_reduce(const at::Tensor& input, ReduceOp op);
  Started begin_all_gather(const at::Tensor& input, SizesRef counts);
  Started begin_even_all_gather(const at::Tensor& input);
  Started
  begin_reduce_scatter(const at::Tensor& input, SizesRef counts, ReduceOp op);
  Started begin_even_reduce_scatter(const at::Tensor& input, ReduceOp op);
  Started
  begin_all_to_all(const at::Tensor& input, SizesRef sent, SizesRef received);

  Started begin_broadcast(const at::Tensor& input, int64_t root);
  Started begin_send(const at::Tensor& input, int64_t to, int64_t tag);
  Started begin_recv(const at::Tensor& like, int64_t from, int64_t tag);

  /// Whether the backend has this reduction.
  bool reduces(at::ScalarType dtype, ReduceOp op) const;

  c10::intrusive_ptr<c10d::Backend> backend_;
  bool is_nccl_;
};

} // namespace dtensor::detail
