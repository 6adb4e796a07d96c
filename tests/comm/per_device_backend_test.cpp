// SPDX-License-Identifier: BSD-3-Clause
// A group that supports two device types: the CPU, over a store of bytes, and
// the meta device, which stands for a GPU here and communicates nothing.
#include <dtensor/comm/backend_layer.h>
#include <dtensor/comm/processes/built_in_backends_impl.h>
#include <dtensor/comm/ranks.h>
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "collective_inputs.h"
#include "expect_error.h"
#include "store_ranks.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;
using detail::DeviceBackend;
using ::testing::HasSubstr;

at::Tensor meta(at::IntArrayRef sizes) {
  return torch::empty(sizes, at::kMeta);
}

// Factory of both backends of a group. Records the names of the backends made.
struct Making {
  explicit Making(StorePtr shared) : store(std::move(shared)) {}

  DeviceBackend over_store(c10::DeviceType device, std::string name) {
    return {device, std::move(name), [this](auto members, const auto& place) {
              made += "store ";
              return std::make_shared<StoreBackend>(
                  std::move(members), place.store, rounds);
            }};
  }
  DeviceBackend fake(c10::DeviceType device) {
    return {device, "fake", [this](auto members, const auto&) {
              made += "fake ";
              return detail::fake_backend(std::move(members));
            }};
  }
  GroupBackendPtr group(std::vector<DeviceBackend> backends) {
    RendezvousInfo place;
    place.store = store;
    return detail::per_device_backend(
        {all_ranks(get_world_size()), get_rank(), "tp"},
        place,
        std::move(backends));
  }

  StorePtr store;
  std::map<std::string, int64_t> rounds = {};
  std::string made = {};
};

void on_two(const std::function<void(Making&)>& fn, bool checks = false) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  on_store_ranks(
      2,
      [&] { return store; },
      [&](int64_t) {
        Making making(store);
        fn(making);
      },
      checks);
}

TEST(PerDeviceBackend, SelectsTheBackendByDevice) {
  on_two([](Making& making) {
    Group group(
        making.group(
            {making.fake(at::kMeta), making.over_store(at::kCPU, "store")}),
        "tp");
    const auto mine = input_of(get_rank(), {4, 2});
    EXPECT_EQ(making.made, "store "); // eagerly, as in a world of CPUs
    expect_equal(
        group.all_reduce(mine, ReduceOp::kSum),
        reduced(inputs({4, 2}), ReduceOp::kSum));
    EXPECT_EQ(making.made, "store ");
    EXPECT_TRUE(group.all_reduce(meta({4}), ReduceOp::kSum).is_meta());
    EXPECT_EQ(making.made, "store fake ");
    EXPECT_EQ(group.broadcast(meta({3}), 1).sizes(), meta({3}).sizes());
    expect_equal(group.broadcast(mine, 1), input_of(1, {4, 2}));
    EXPECT_EQ(making.made, "store fake ");
  });
}

// Sizes are exchanged over the CPU backend, where they need no copy from a
// device.
TEST(PerDeviceBackend, ExchangesSizesIfNothingHasToBeFetched) {
  on_two([](Making& making) {
    Group group(
        making.group(
            {making.over_store(at::kCPU, "store"), making.fake(at::kMeta)}),
        "tp");
    const auto mine = meta({4, 1 + 2 * get_rank()});
    const std::vector<int64_t> all = {4, 4};
    EXPECT_EQ(group.all_gather(mine, 1).sizes(), all);
    EXPECT_EQ(group.all_gather_async(mine, 1, 4)->wait().sizes(), all);
    EXPECT_EQ(
        group.shard_dim_alltoall(mine, 1, 0).sizes(),
        (std::vector<int64_t>{2, 4}));
    const auto parts = group.all_to_all({mine, mine});
    EXPECT_EQ(parts[0].size(1), 1);
    EXPECT_EQ(parts[1].size(1), 3);
    EXPECT_EQ(making.rounds["0,1 all_to_all"], 0);
  });
}

TEST(PerDeviceBackend, MakesOneOfAName) {
  on_two([](Making& making) {
    Group group(
        making.group(
            {making.fake(at::kMeta),
             making.over_store(at::kCPU, "one"),
             making.over_store(at::kCUDA, "one")}),
        "tp");
    group.barrier();
    EXPECT_EQ(making.made, "store ");
  });
}

// Fake backend that progresses in the background. Records that it is abandoned.
class Background final : public BackendLayer {
 public:
  Background(GroupMembers members, std::string& log)
      : BackendLayer(detail::fake_backend(std::move(members))),
        log_(log) {}
  bool progresses_in_background(c10::DeviceType) const override {
    return true;
  }
  void abandon(const std::string& why) override {
    log_ += why;
  }

 private:
  std::string& log_;
};

TEST(PerDeviceBackend, FollowsTheBackendOfTheDevice) {
  on_two([](Making& making) {
    std::string log;
    const auto backend = making.group(
        {making.over_store(at::kCPU, "store"),
         {at::kMeta, "background", [&](auto members, const auto&) {
            return std::make_shared<Background>(std::move(members), log);
          }}});
    Group group(backend, "tp");
    EXPECT_FALSE(group.progresses_in_background(at::kMeta)); // not made yet
    backend->abandon("early; ");
    group.broadcast(meta({2}), 0);
    EXPECT_TRUE(group.progresses_in_background(at::kMeta));
    EXPECT_FALSE(group.progresses_in_background(at::kCPU));
    EXPECT_FALSE(group.progresses_in_background(at::kCUDA));
    backend->abandon("no such row");
    EXPECT_EQ(log, "no such row");
  });
}

TEST(PerDeviceBackend, SharesOneOfAName) {
  on_two([](Making& making) {
    Group group(
        making.group({making.fake(at::kCPU), making.fake(at::kMeta)}), "tp");
    EXPECT_EQ(making.made, "fake ");
    EXPECT_TRUE(group.broadcast(meta({2}), 0).is_meta());
    EXPECT_EQ(making.made, "fake ");
  });
}

TEST(PerDeviceBackend, WithoutTheCpuGoesOverTheFirst) {
  on_two([](Making& making) {
    const auto backend = making.group({making.fake(at::kMeta)});
    Group group(backend, "tp");
    EXPECT_EQ(making.made, "");
    EXPECT_TRUE(backend->needs().device.is_meta());
    group.barrier();
    EXPECT_EQ(making.made, "fake ");
    EXPECT_EQ(
        error_of<c10::ValueError>([&] { group.broadcast(torch::ones(2), 0); }),
        "[broadcast] no backend for tensors on cpu on \"tp\": this world has "
        "\"meta:fake\". Add one to DTENSOR_BACKEND or to the backend of "
        "init_process_group, \"meta:fake,cpu:...\", or move the tensor.");
  });
}

// Checked ranks report that their devices differ, instead of deadlocking in
// different backends.
TEST(PerDeviceBackend, CheckedRanksAgreeAboutTheDevice) {
  on_two([](Making& making) {
    Group group(
        checked(making.group(
            {making.over_store(at::kCPU, "store"), making.fake(at::kMeta)})),
        "tp");
    const auto mine = get_rank() == 0 ? torch::ones(2) : meta({2});
    const auto call = [&](bool later) {
      return error_of<c10::ValueError>([&] {
        later ? group.all_reduce_async(mine, ReduceOp::kSum)->wait()
              : group.all_reduce(mine, ReduceOp::kSum);
      });
    };
    for (const bool later : {false, true}) {
      EXPECT_EQ(
          call(later),
          "[all_reduce] ranks of \"tp\" disagree: rank 0 calls all_reduce of "
          "f32[2] with sum; rank 1 calls all_reduce of f32[2] with sum on "
          "meta. "
          "Call the same collective with the same sizes on every rank.");
    }
    EXPECT_TRUE(group.all_reduce(meta({2}), ReduceOp::kSum).is_meta());
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
