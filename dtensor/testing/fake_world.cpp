// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/testing/fake_world.h>

#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/comm/threads/assumed_shapes_impl.h>
#include <dtensor/comm/world_impl.h>
#include <dtensor/error.h>
#include <dtensor/layout/shard_math.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/AutogradState.h>

namespace dtensor::testing {
namespace {

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

class FakeWorld final : public World {
 public:
  FakeWorld(int64_t rank, int64_t size)
      : World(rank, size, "with_fake_world") {}

 protected:
  GroupPtr make_group(
      std::vector<int64_t> ranks,
      int64_t rank,
      std::string label) override {
    return std::make_shared<FakeGroup>(
        std::move(ranks), rank, std::move(label));
  }
};

/// Makes this thread that rank while it lives, as run_ranks does for its own.
class FakeRank {
 public:
  FakeRank(int64_t rank, int64_t world_size)
      : multithreading_(autograd().get_multithreading_enabled()),
        generator_(detail::copy_of_default_generator()),
        world_(std::make_shared<FakeWorld>(rank, world_size)),
        scope_(world_),
        own_generator_(generator_) {
    autograd().set_multithreading_enabled(false);
  }
  ~FakeRank() {
    world_->end();
    autograd().set_multithreading_enabled(multithreading_);
    detail::set_default_generator(generator_);
  }
  FakeRank(const FakeRank&) = delete;
  FakeRank& operator=(const FakeRank&) = delete;

 private:
  static c10::AutogradState& autograd() {
    return c10::AutogradState::get_tls_state();
  }

  bool multithreading_;
  at::Generator generator_;
  std::shared_ptr<World> world_;
  detail::GeneratorExchange exchange_;
  WorldScope scope_;
  detail::RankGeneratorScope own_generator_;
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
      !detail::is_rank(),
      "with_fake_world",
      "called from inside a rank. Ranks cannot be nested: call it outside of "
      "them.");
  const FakeRank fake(rank, world_size);
  fn();
}

} // namespace dtensor::testing
