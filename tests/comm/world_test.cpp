// SPDX-License-Identifier: BSD-3-Clause
// The current world of a thread, and the state that belongs to a rank.
#include <dtensor/comm/observer.h>
#include <dtensor/comm/rank/rank_local_impl.h>
#include <dtensor/comm/ranks.h>
#include <dtensor/comm/world.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <future>

#include "expect_error.h"

namespace dtensor {
namespace TEST_SOURCE {

using test::error_of;

/// A world without communication.
class SilentWorld final : public World {
 public:
  SilentWorld(int64_t rank, int64_t size) : World(rank, size, "silent world") {}

 protected:
  GroupBackendPtr make_backend(GroupMembers) override {
    return nullptr;
  }
};

void in_another_thread(const std::function<void()>& fn) {
  std::async(std::launch::async, fn).get();
}

TEST(World, OfAProgramHasOneRank) {
  EXPECT_EQ(this_world()->rank(), 0);
  EXPECT_EQ(this_world()->size(), 1);
  EXPECT_EQ(&current_world(), this_world().get());
  in_another_thread([world = this_world()] { EXPECT_EQ(this_world(), world); });
  const GroupPtr alone = this_world()->new_group({0}, "alone");
  EXPECT_EQ(alone->all_gather(torch::ones({3}), 0).numel(), 3);
}

TEST(World, IsThatOfTheScope) {
  const auto world = std::make_shared<SilentWorld>(2, 5);
  {
    const WorldScope scope(world);
    EXPECT_EQ(this_world(), world);
    EXPECT_EQ(get_rank(), 2);
    EXPECT_EQ(get_world_size(), 5);
    const WorldScope again(world);
    // A group of one rank needs no communication.
    EXPECT_EQ(new_group({2}, "alone")->ranks(), std::vector<int64_t>{2});
    in_another_thread([] { EXPECT_EQ(get_world_size(), 1); });
  }
  EXPECT_EQ(get_world_size(), 1);
}

/// Counts the collectives of a group.
class CountingBackend final : public GroupBackend {
 public:
  CountingBackend(GroupBackendPtr inner, int& count)
      : GroupBackend(inner->members(), inner->needs()),
        inner_(std::move(inner)),
        count_(count) {}

  InFlight submit(Collective&& collective) override {
    ++count_;
    return inner_->submit(std::move(collective));
  }

 private:
  GroupBackendPtr inner_;
  int& count_;
};

TEST(World, WrapsTheBackendsOfNewGroups) {
  run_ranks(2, [](int64_t rank) {
    int count = 0;
    const auto sum = [](const GroupPtr& group) {
      EXPECT_EQ(
          group->all_reduce(torch::ones({1}), ReduceOp::kSum).item<float>(), 2);
    };
    const GroupPtr before = new_group({0, 1}, "before");
    if (rank == 0) { // the other rank's groups stay as they are
      wrap_backends([&](GroupBackendPtr backend) {
        return std::make_shared<CountingBackend>(std::move(backend), count);
      });
    }
    const GroupPtr wrapped = new_group({0, 1}, "wrapped");
    wrap_backends(nullptr);
    const GroupPtr after = new_group({0, 1}, "after");
    sum(before);
    sum(after);
    EXPECT_EQ(count, 0);
    sum(wrapped);
    EXPECT_EQ(count, rank == 0 ? 1 : 0);
  });
}

TEST(World, ScopesRejectInvalidRanks) {
  EXPECT_EQ(
      error_of<c10::ValueError>(
          [] { const WorldScope scope(std::make_shared<SilentWorld>(5, 5)); }),
      "[WorldScope] no rank 5 in a world of 5. Use ranks from 0 to the world "
      "size minus 1.");
  const auto world = std::make_shared<SilentWorld>(1, 2);
  {
    const WorldScope scope(world);
    EXPECT_EQ(
        error_of([] {
          const WorldScope inner(std::make_shared<SilentWorld>(0, 2));
        }),
        "[WorldScope] this thread is rank 1 of another world. Ranks cannot be "
        "nested: use a thread for each.");
    EXPECT_EQ(
        error_of([] { run_ranks(2, [] {}); }),
        "[run_ranks] called from rank 1 of 2. Ranks cannot be nested: call "
        "this function outside of ranks.");
  }
  world->end();
  EXPECT_EQ(
      error_of([&] { const WorldScope scope(world); }),
      "[WorldScope] this silent world has ended. Make a new world.");
}

TEST(World, MakesGroupsForItsOwnRankAlone) {
  const auto world = std::make_shared<SilentWorld>(1, 2);
  EXPECT_EQ(
      error_of([&] { world->new_group({1}, "tp"); }),
      "[new_group] the world belongs to rank 1, but this thread is not a rank. "
      "Build one model per rank, in the function that the ranks run, and "
      "return only plain tensors from it.");
}

// A world lives as long as any of its groups.
TEST(World, IsKeptByItsGroups) {
  std::weak_ptr<World> world;
  GroupPtr group;
  run_ranks(2, [&](int64_t rank) {
    const GroupPtr mine = new_group({0, 1}, "tp");
    if (rank == 0) {
      group = mine;
      world = this_world();
    }
  });
  EXPECT_FALSE(world.expired());
  EXPECT_TRUE(world.lock()->has_ended());
  group = nullptr;
  EXPECT_TRUE(world.expired());
}

struct Counter final : CommObserver {
  void on_collective(const CollectiveEvent&) override {
    ++count;
  }
  int count = 0;
};

// A backward node runs in the world of the rank that created it, even if
// another thread runs the backward pass.
TEST(World, OfABackwardNodeIsTheOneThatMadeIt) {
  run_ranks(2, [](int64_t rank) {
    const GroupPtr group = new_group({0, 1}, "tp");
    const at::Tensor x = torch::ones({2}).requires_grad_();
    const at::Tensor y = x * static_cast<double>(rank + 1);
    int64_t seen = -1;
    y.register_hook([&](const at::Tensor& grad) {
      seen = get_rank();
      return group->all_reduce(grad * (rank + 1), ReduceOp::kSum);
    });
    const at::Tensor loss = y.sum();
    Counter counter;
    const CommObserverGuard guard(counter);
    in_another_thread([&] {
      loss.backward();
      EXPECT_EQ(get_world_size(), 1);
      EXPECT_THROW(group->barrier(), c10::Error);
    });
    EXPECT_EQ(seen, rank);
    EXPECT_EQ(counter.count, 1);
    EXPECT_EQ(x.grad()[0].item<double>(), 3.0 * static_cast<double>(rank + 1));
  });
}

// Another thread may act as the rank while the rank waits for it.
TEST(World, MayBeLentToAnotherThread) {
  run_ranks(2, [](int64_t rank) {
    const GroupPtr group = new_group({0, 1}, "tp");
    in_another_thread([&, world = this_world()] {
      const WorldScope scope(world);
      EXPECT_EQ(get_rank(), rank);
      const at::Tensor sum =
          group->all_reduce(torch::tensor({rank}), ReduceOp::kSum);
      EXPECT_EQ(sum.item<int64_t>(), 1);
    });
    EXPECT_EQ(get_rank(), rank);
    group->barrier();
  });
}

// A backward node runs outside of any world once its rank has ended.
TEST(World, OfANodeIsEmptyAfterTheRankHasEnded) {
  at::Tensor loss;
  int64_t size = -1;
  run_ranks(2, [&](int64_t rank) {
    if (rank == 1) {
      const at::Tensor y = torch::ones({2}).requires_grad_() * 2;
      y.register_hook([&](const at::Tensor&) { size = get_world_size(); });
      loss = y.sum();
    }
  });
  loss.backward();
  EXPECT_EQ(size, 1);
}

detail::RankLocal<std::vector<int64_t>> noted;

TEST(RankLocal, IsOnePerRankAndOnePerThreadOutside) {
  noted.get() = {7};
  run_ranks(3, [](int64_t rank) {
    EXPECT_TRUE(noted.get().empty());
    noted.get().push_back(rank);
    in_another_thread([] { EXPECT_TRUE(noted.get().empty()); });
    EXPECT_EQ(noted.get(), std::vector<int64_t>{rank});
  });
  EXPECT_EQ(noted.get(), std::vector<int64_t>{7});
  in_another_thread([] { EXPECT_TRUE(noted.get().empty()); });
}

std::shared_ptr<int> watched;
detail::RankLocal<std::shared_ptr<int>> kept;

TEST(RankLocal, IsDroppedWhenTheRankEnds) {
  watched = std::make_shared<int>();
  Ranks ranks(3);
  ranks.run([] { kept.get() = watched; });
  EXPECT_EQ(watched.use_count(), 4);
  ranks.run([] { EXPECT_EQ(kept.get(), watched); });
  { const Ranks others(2); }
  EXPECT_EQ(watched.use_count(), 4);
  EXPECT_THROW(ranks.run([] { TORCH_CHECK(false, "stop"); }), c10::Error);
  EXPECT_EQ(watched.use_count(), 1);
}

} // namespace TEST_SOURCE
} // namespace dtensor
