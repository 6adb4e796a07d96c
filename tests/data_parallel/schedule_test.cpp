// SPDX-License-Identifier: BSD-3-Clause
// Communication of units: counts per mesh dimension, and order.
#include <tests/data_parallel/training.h>

#include <functional>
#include <map>
#include <tuple>
#include <utility>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_training;

// Collective counts by kind, mesh dimension and number of ranks.
using Kinds =
    std::map<std::tuple<CollectiveKind, std::string, int64_t>, int64_t>;

class CountsByGroup final : public CommObserver {
 public:
  void on_collective(const CollectiveEvent& event) override {
    ++counts_[{event.kind, std::string(event.label), event.group_size}];
  }
  Kinds take() {
    return std::exchange(counts_, {});
  }

 private:
  Kinds counts_;
  CommObserverGuard guard_{*this};
};

// Returns counts of the second and the third step, which must be equal.
Kinds kinds_of_a_step(
    const Layout& layout,
    const FullyShardOptions& sharding,
    bool with_units = true) {
  Kinds kinds;
  run_ranks(layout.ranks(), [&] {
    const auto mesh = init_device_mesh(at::kCPU, layout.shape, layout.names);
    auto model = make_gpt();
    if (layout.has("tp")) {
      gpt::parallelize(model, mesh["tp"], {.sequence = true, .loss = true});
    }
    if (with_units) {
      shard_gpt(model, data_mesh(mesh, layout), sharding);
    }
    const auto [ids, targets] = batch_of(0);
    CountsByGroup counts;
    Kinds first;
    for (int step = 0; step < 3; ++step) {
      model->zero_grad();
      const auto guard = loss_parallel();
      gpt::loss_of(model->forward(ids), targets).backward();
      const auto found = counts.take();
      if (step == 1) {
        first = found;
      } else if (step == 2) {
        EXPECT_EQ(found, first);
      }
    }
    if (get_rank() == 0) {
      kinds = first;
    }
  });
  return kinds;
}

constexpr auto kGather = CollectiveKind::kAllGather;
constexpr auto kScatter = CollectiveKind::kReduceScatter;
constexpr auto kSum = CollectiveKind::kAllReduce;

// The outermost unit is gathered once and kept until the backward pass, which
// begins with this unit.
const auto kLayers = config().layers;
const auto kUnits = kLayers + 1;

TEST(FullyShardCounts, GathersTheSecondTimeAmongNeighbours) {
  const auto kinds =
      kinds_of_a_step({{4}, {"shard"}}, {.reshard_after_forward = 2});
  EXPECT_EQ(
      kinds,
      (Kinds{
          {{kGather, "shard", 4}, kUnits},
          {{kGather, "dtensor_near", 2}, kLayers},
          {{kScatter, "shard", 4}, kUnits}}));
}

TEST(FullyShardCounts, SumsOverReplicasOncePerUnit) {
  const auto kinds = kinds_of_a_step({{2, 3}, {"repeat", "shard"}}, {});
  EXPECT_EQ(
      kinds,
      (Kinds{
          {{kGather, "shard", 3}, kLayers + kUnits},
          {{kScatter, "shard", 3}, kUnits},
          {{kSum, "repeat", 2}, kUnits}}));
}

// With tensor parallelism, the counts on each mesh dimension are those without
// the other dimension.
TEST(FullyShardCounts, AddToCountsOfTensorParallelism) {
  for (const bool repeats : {false, true}) {
    auto expected = kinds_of_a_step({{2}, {"tp"}}, {}, /*with_units=*/false);
    int64_t alone = 0;
    for (const auto& item : expected) {
      alone += item.second;
    }
    EXPECT_EQ(
        alone,
        gpt::expected_collectives(kLayers, {.sequence = true, .loss = true}));
    expected[{kGather, "shard", 3}] = kLayers + kUnits;
    expected[{kScatter, "shard", 3}] = kUnits;
    Layout layout{{3, 2}, {"shard", "tp"}};
    if (repeats) {
      expected[{kSum, "repeat", 2}] = kUnits;
      layout = {{2, 3, 2}, {"repeat", "shard", "tp"}};
    }
    EXPECT_EQ(kinds_of_a_step(layout, {}), expected);
  }
}

// Chain of Linears that records the order of its computations.
struct ChainImpl : torch::nn::Module {
  ChainImpl() : layers(register_module("layers", torch::nn::ModuleList())) {
    for (int i = 0; i < 4; ++i) {
      layers->push_back(torch::nn::Linear(6, 6));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto i : order) {
      note(c10::str("forward ", i));
      x = at::tanh(layers[i]->as<torch::nn::LinearImpl>()->forward(x));
      if (x.requires_grad()) {
        x.register_hook(
            [this, i](const at::Tensor&) { note(c10::str("backward ", i)); });
      }
    }
    return x;
  }
  torch::nn::ModuleList layers;
  std::vector<size_t> order = {0, 1, 2, 3};
  std::function<void(const std::string&)> note = [](const std::string&) {};
};
TORCH_MODULE(Chain);

// Records the events of a rank in order, with layer numbers.
class Happened final : public CommObserver {
 public:
  void on_collective(const CollectiveEvent& event) override {
    const auto layer = event.module.substr(event.module.find('.') + 1);
    note(c10::str(event.kind == kGather ? "gather " : "reduce ", layer));
  }
  void note(const std::string& what) {
    all_ += (all_.empty() ? "" : ", ") + what;
  }
  std::string take() {
    return std::exchange(all_, "");
  }

 private:
  std::string all_;
  CommObserverGuard guard_{*this};
};

// Returns the events of steps that call the layers in the given orders.
std::vector<std::string> steps_in(
    const std::vector<std::vector<size_t>>& orders) {
  std::vector<std::string> steps;
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"dp"});
    auto chain = filled(Chain());
    auto plain = filled(Chain());
    for (const auto& layer : *chain->layers) {
      fully_shard(*layer, {.mesh = mesh, .reshard_after_forward = true});
    }
    fully_shard(*chain, {.mesh = mesh});
    Happened happened;
    chain->note = [&](const std::string& what) { happened.note(what); };
    const auto x = uniform({4, 6}, 3);
    for (const auto& order : orders) {
      chain->order = plain->order = order;
      chain->zero_grad();
      plain->zero_grad();
      chain(x).square().mean().backward();
      const auto events = happened.take();
      plain(x).square().mean().backward();
      expect_same_gradients(*chain, *plain, "in that order");
      happened.take(); // drops the gathers of this comparison
      if (get_rank() == 0) {
        steps.push_back(events);
      }
    }
  });
  return steps;
}

// In the first step, the forward pass has no recorded order for prefetching,
// but the backward pass has one. The last layer is still gathered when the
// backward pass begins with it.
TEST(FullyShardSchedule, GathersAheadInTheOrderOfTheLastStep) {
  const auto steps = steps_in({{0, 1, 2, 3}, {0, 1, 2, 3}});
  const std::string backward =
      ", backward 3, gather 2, reduce 3, backward 2, gather 1, reduce 2, "
      "backward 1, gather 0, reduce 1, backward 0, reduce 0";
  EXPECT_EQ(
      steps.at(0),
      "forward 0, gather 0, forward 1, gather 1, forward 2, gather 2, "
      "forward 3, gather 3" +
          backward);
  EXPECT_EQ(
      steps.at(1),
      "forward 0, gather 0, gather 1, forward 1, gather 2, forward 2, "
      "gather 3, forward 3" +
          backward);
}

// After a wrong prefetch, the parameters are freed and prefetching stops. The
// next step prefetches in the new order.
TEST(FullyShardSchedule, FollowsANewOrder) {
  const auto steps = steps_in({{0, 1, 2, 3}, {0, 2, 1, 3}, {0, 2, 1, 3}});
  const auto forward_of = [](const std::string& step) {
    return step.substr(0, step.find(", backward"));
  };
  EXPECT_EQ(
      forward_of(steps.at(1)),
      "forward 0, gather 0, gather 1, forward 2, gather 2, forward 1, "
      "gather 1, forward 3, gather 3");
  EXPECT_EQ(
      forward_of(steps.at(2)),
      "forward 0, gather 0, gather 2, forward 2, gather 1, forward 1, "
      "gather 3, forward 3");
}

} // namespace TEST_SOURCE
} // namespace dtensor
