// SPDX-License-Identifier: BSD-3-Clause
// A backend with the seven required functions supports every collective. Tests
// of the default implementations of GroupBackend, and of checked().
#include <dtensor/comm/backend/decompose_impl.h>
#include <dtensor/comm/backend_layer.h>
#include <dtensor/comm/group_backend.h>
#include <dtensor/comm/processes/built_in_backends_impl.h>
#include <dtensor/dtensor.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <limits>
#include <utility>

#include "collective_inputs.h"
#include "expect_error.h"
#include "store_ranks.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace test;

constexpr int64_t kRanks = 3;

// Returns a tensor of shape [3, rank % 3, 2]: the size along dimension 1
// depends on the rank.
at::Tensor uneven(int64_t rank) {
  return input_of(rank, {3, rank % 3, 2});
}

// Returns the error of two ranks that call two modules in a different order.
// Both ranks call the same collective with the same sizes.
std::string told_of_other_modules() {
  std::string told;
  on_store_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    torch::nn::Sequential model(
        torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
    parallelize_module(*model, mesh, {{"*", RowwiseParallel()}});
    const torch::NoGradGuard no_grad;
    const auto text = error_of<c10::ValueError>([&] {
      model[static_cast<size_t>(rank)]->as<torch::nn::Linear>()->forward(
          torch::ones({3, 2}));
    });
    if (rank == 0) {
      told = text;
    }
  });
  return told;
}

TEST(GroupBackend, ComparesWhatCollectivesAreFor) {
  EXPECT_EQ(
      told_of_other_modules(),
      "[all_reduce] ranks of \"tp\" disagree: rank 0 calls all_reduce of "
      "f32[3, 4] with sum for aten::addmm, f32[3, 4] on (tp=2): P(sum) to R, "
      "in module \"0\"; rank 1 calls all_reduce of f32[3, 4] with sum for "
      "aten::addmm, f32[3, 4] on (tp=2): P(sum) to R, in module \"1\". Call "
      "the same collective with the same sizes on every rank.");
}

// A redistribution does not match the equivalent collective called directly.
TEST(GroupBackend, ComparesLayouts) {
  on_store_ranks(2, [&](int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto sum = distribute_tensor(torch::ones({3, 4}), mesh, {Partial()});
    const std::string text = error_of<c10::ValueError>([&] {
      if (rank == 0) {
        redistribute(sum, {Replicate()});
      } else {
        get_group(mesh).all_reduce(torch::ones({3, 4}), ReduceOp::kSum);
      }
    });
    EXPECT_EQ(
        text,
        "[all_reduce] ranks of \"tp\" disagree: rank 0 calls all_reduce of "
        "f32[3, 4] with sum for f32[3, 4] on (tp=2): P(sum) to R; rank 1 calls "
        "all_reduce of f32[3, 4] with sum. Call the same collective with the "
        "same sizes on every rank.");
  });
}

TEST(GroupBackend, IsObservedAsAnyOther) {
  on_store_ranks(kRanks, [](int64_t rank) {
    CommDebugMode mode;
    world()->all_gather(uneven(rank), 1, {0, 1, 2});
    world()->barrier(); // its internal parts and checks are not observed
    EXPECT_EQ(mode.get_total_counts(), 2);
  });
}

// The errors of equal calls in a world of threads and in a StoreWorld.
using Body = std::function<void(Group&, int64_t rank)>;

std::string in_threads(const Body& body) {
  std::string text = error_of<c10::ValueError>([&] {
    run_ranks(2, [&](int64_t rank) { body(*new_group({0, 1}, "tp"), rank); });
  });
  // Remove the text that run_ranks() adds to any error.
  const std::string head = "[run_ranks] 2 of 2 ranks failed. every rank: ";
  const std::string place = " (in barrier on \"tp\")";
  if (text.substr(0, head.size()) == head) {
    text = text.substr(head.size());
  }
  return text.substr(0, text.find(place));
}

std::string over_a_store(const Body& body) {
  std::vector<std::string> texts(2);
  on_store_ranks(2, [&](int64_t rank) {
    const GroupPtr group = new_group({0, 1}, "tp");
    texts[static_cast<size_t>(rank)] =
        error_of<c10::ValueError>([&] { body(*group, rank); });
    group->barrier(); // the group is still usable
  });
  EXPECT_EQ(texts[0], texts[1]);
  return texts[0];
}

void expect_same_text(const Body& body) {
  const std::string text = over_a_store(body);
  EXPECT_EQ(text, in_threads(body));
  EXPECT_EQ(text.front(), '[') << text;
}

TEST(CheckedBackend, ComparesWhatRanksAssume) {
  const Body body = [](Group& group, int64_t rank) {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto part = torch::ones({3 - rank});
    const auto d = DTensor::from_local(part, mesh, {Shard(0)});
    get_group(mesh).barrier();
    group.barrier();
  };
  expect_same_text(body);
}

// Returns the error of rank 7 if rank 4 sends `forged` as the shapes of its
// tensors for both.
std::string error_of_shapes(const std::vector<int64_t>& forged) {
  const auto group = detail::fake_backend({{4, 7}, 1, "tp"});
  const auto length = static_cast<int64_t>(forged.size());
  const std::vector<int64_t> mine = {1, 2, 1, 2};
  bool has_lengths = false;
  const auto begin = [&](Collective&&) -> InFlight {
    return !std::exchange(has_lengths, true)
        ? torch::tensor({length, int64_t{4}})
        : torch::cat({torch::tensor(forged, at::kLong), torch::tensor(mine)});
  };
  return error_of([&] {
    detail::exchange_shapes(
        "gather", *group, begin, {torch::ones(2), torch::ones(2)});
  });
}

TEST(GroupBackend, RefusesShapesThatAreNone) {
  EXPECT_EQ(error_of_shapes({1, 5, 0}), "nothing was thrown");
  const auto most = std::numeric_limits<int64_t>::max();
  for (const std::vector<int64_t>& forged : std::vector<std::vector<int64_t>>{
           {}, {0}, {1, 5}, {2, 5}, {-1}, {most}, {1, 5, 1}, {0, most, 0}}) {
    EXPECT_EQ(
        error_of_shapes(forged),
        "[gather] rank 4 of \"tp\" sent no shape for the tensor to rank 7. Run "
        "the same program on all ranks.");
  }
}

TEST(GroupBackend, RefusesSizesThatAreNone) {
  const auto group = detail::fake_backend({{4, 7}, 1, "tp"});
  const auto most = std::numeric_limits<int64_t>::max();
  for (const int64_t forged : {int64_t{-1}, most}) {
    const auto begin = [&](Collective&&) -> InFlight {
      return torch::tensor({forged, int64_t{3}});
    };
    EXPECT_EQ(
        error_of([&] {
          detail::exchange_sizes("shard_dim_alltoall", *group, begin, 3);
        }),
        c10::str(
            "[shard_dim_alltoall] rank 4 of \"tp\" sent an invalid number of "
            "elements: ",
            forged,
            ". Run the same program on all ranks."));
  }
}

// Fake backend that records with which reason it is abandoned.
class Abandoned final : public BackendLayer {
 public:
  Abandoned(GroupMembers members, std::string& log)
      : BackendLayer(detail::fake_backend(std::move(members))),
        log_(log) {}
  void abandon(const std::string& why) override {
    log_ += c10::Join("-", members().ranks) + ": " + why + "; ";
  }

 private:
  std::string& log_;
};

TEST(GroupBackend, OfSeveralHostsIsAbandonedOnAllLevels) {
  std::string log;
  const MakeBackend make = [&](GroupMembers members, const RendezvousInfo&) {
    return std::make_shared<Abandoned>(std::move(members), log);
  };
  RendezvousInfo place;
  place.store = c10::make_intrusive<c10d::HashStore>();
  place.hosts = {"oak", "oak", "elm", "elm"};
  const auto backend =
      detail::hierarchical_backend({{4, 5, 6, 7}, 1, "tp"}, place, make, make);
  backend->abandon("no such row");
  EXPECT_EQ(log, "4-5: no such row; 5-7: no such row; 4-5-6-7: no such row; ");
}

} // namespace TEST_SOURCE
} // namespace dtensor
