// SPDX-License-Identifier: BSD-3-Clause
#include <dtensor/testing/fake_world.h>

#include <dtensor/comm/processes/built_in_backends_impl.h>
#include <dtensor/comm/rank_generator_impl.h>
#include <dtensor/comm/world_impl.h>
#include <dtensor/error.h>

#include <c10/core/AutogradState.h>

namespace dtensor::testing {
namespace {

class FakeWorld final : public World {
 public:
  FakeWorld(int64_t rank, int64_t size)
      : World(rank, size, "with_fake_world") {}

 protected:
  GroupBackendPtr make_backend(GroupMembers members) override {
    return detail::fake_backend(std::move(members));
  }
};

/// Makes this thread a rank, as run_ranks does for its threads.
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
  detail::GeneratorSwap swap_;
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
      "[with_fake_world] no rank {} in a world of {}. Use ranks from 0 to the "
      "world size minus 1.",
      rank,
      world_size);
  DTENSOR_CHECK(
      !detail::is_rank(),
      "[with_fake_world] called from inside a rank. Ranks cannot be nested: "
      "call this function outside of ranks.");
  const FakeRank fake(rank, world_size);
  fn();
}

} // namespace dtensor::testing
