// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/testing/fake_world.h>

#include <dtensor/comm/assumed_shapes_impl.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/comm/thread_world_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/AutogradState.h>

namespace dtensor::testing {
namespace {

using detail::RankContext;
using detail::ThreadWorld;

class FakeGroup final : public Group {
 public:
  FakeGroup(std::vector<int64_t> ranks, int64_t rank, std::string label)
      : Group(std::move(ranks), rank, std::move(label)) {}

 protected:
  at::Tensor do_all_reduce(const at::Tensor& input, ReduceOp) override {
    const Meeting meeting(*this);
    return input.clone();
  }

  at::Tensor do_all_gather(const at::Tensor& input, int64_t dim) override {
    const Meeting meeting(*this);
    Sizes sizes(input.sizes().begin(), input.sizes().end());
    sizes[static_cast<size_t>(dim)] *= size();
    return at::zeros(sizes, input.options());
  }

  at::Tensor do_reduce_scatter(const at::Tensor& input, int64_t dim, ReduceOp)
      override {
    const Meeting meeting(*this);
    const Interval mine = chunk(input.size(dim), size(), rank());
    return input.narrow(dim, mine.begin, mine.size()).clone();
  }

  std::vector<at::Tensor> do_all_to_all(
      const std::vector<at::Tensor>& inputs) override {
    const Meeting meeting(*this);
    return inputs;
  }

  at::Tensor do_shard_dim_alltoall(
      const at::Tensor& input,
      int64_t gather_dim,
      int64_t shard_dim) override {
    const Meeting meeting(*this);
    Sizes sizes(input.sizes().begin(), input.sizes().end());
    sizes[static_cast<size_t>(gather_dim)] *= size();
    auto& cut = sizes[static_cast<size_t>(shard_dim)];
    cut = chunk(cut, size(), rank()).size();
    return at::zeros(sizes, input.options());
  }

  at::Tensor do_broadcast(const at::Tensor& input, int64_t root) override {
    const Meeting meeting(*this);
    return root == rank() ? input.clone() : at::zeros_like(input);
  }

  at::Tensor do_scatter(
      const std::vector<at::Tensor>& inputs,
      const at::Tensor& like,
      int64_t root) override {
    const Meeting meeting(*this);
    return root == rank() ? inputs[static_cast<size_t>(root)].clone()
                          : at::zeros_like(like);
  }

  std::vector<at::Tensor> do_gather(const at::Tensor& input, int64_t root)
      override {
    const Meeting meeting(*this);
    return root == rank()
        ? std::vector<at::Tensor>(static_cast<size_t>(size()), input)
        : std::vector<at::Tensor>();
  }

  void do_send(const at::Tensor&, int64_t, int64_t) override {}

  at::Tensor do_recv(const at::Tensor& like, int64_t, int64_t) override {
    const Meeting meeting(*this);
    return at::zeros_like(like);
  }

  void do_barrier() override {
    const Meeting meeting(*this);
  }

  std::vector<std::string> do_exchange(const std::string& mine) override {
    const Meeting meeting(*this);
    return std::vector<std::string>(static_cast<size_t>(size()), mine);
  }

  // Kept as a real group keeps them, because keeping them takes time.
  void do_assume(const Spec& spec) override {
    assumed_.add(spec);
  }

 private:
  /// One collective: below autograd, as in a real group.
  struct Meeting {
    explicit Meeting(FakeGroup& group) {
      group.assumed_.clear();
    }
    at::AutoDispatchBelowADInplaceOrView below_autograd;
  };

  detail::AssumedShapes assumed_;
};

/// Makes this thread that rank while it lives, as run_ranks does for its own.
class FakeRank {
 public:
  FakeRank(int64_t rank, int64_t world_size)
      : caller_(1),
        multithreading_(autograd().get_multithreading_enabled()) {
    context_.world =
        std::make_shared<ThreadWorld>(world_size, std::chrono::minutes(1));
    context_.rank = rank;
    owner_ = std::make_shared<detail::Owner>(rank, context_.world.get());
    context_.owner = owner_;
    context_.generator = caller_.of_rank(0);
    context_.make_group = [](std::vector<int64_t> ranks,
                             int64_t me,
                             std::string label) -> GroupPtr {
      return std::make_shared<FakeGroup>(
          std::move(ranks), me, std::move(label));
    };
    autograd().set_multithreading_enabled(false);
    detail::set_current_rank(&context_);
  }
  ~FakeRank() {
    owner_->has_ended = true;
    detail::set_current_rank(nullptr);
    autograd().set_multithreading_enabled(multithreading_);
    caller_.take_over(0);
  }
  FakeRank(const FakeRank&) = delete;
  FakeRank& operator=(const FakeRank&) = delete;

 private:
  static c10::AutogradState& autograd() {
    return c10::AutogradState::get_tls_state();
  }

  detail::CallerGenerator caller_;
  bool multithreading_;
  std::shared_ptr<detail::Owner> owner_;
  RankContext context_;
};

} // namespace

void with_fake_world(
    int64_t rank,
    int64_t world_size,
    const std::function<void()>& fn) {
  DTENSOR_CHECK_VALUE(
      rank >= 0 && rank < world_size,
      "with_fake_world",
      "no rank ",
      rank,
      " in a world of ",
      world_size,
      ". Use ranks from 0 to the number of ranks less one.");
  DTENSOR_CHECK(
      detail::current_rank() == nullptr,
      "with_fake_world",
      "called from inside a rank. Ranks cannot be nested: call it outside of "
      "them.");
  const FakeRank fake(rank, world_size);
  const detail::RankGeneratorScope generator;
  fn();
}

} // namespace dtensor::testing
