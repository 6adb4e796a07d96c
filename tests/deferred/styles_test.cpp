// SPDX-License-Identifier: BSD-3-Clause
// Parallel styles on deferred models: a forward pass on meta tensors has the
// layouts of the pass with data.
#include <dtensor/deferred/deferred_init.h>
#include <dtensor/layout/text.h>
#include <dtensor/parallel/attention_parallel.h>
#include <dtensor/parallel/loss_parallel.h>
#include <dtensor/parallel/sequence_parallel.h>
#include <tests/parallel/modules.h>

#include <functional>

namespace dtensor {
namespace TEST_SOURCE {

using namespace test_modules;
namespace nn = torch::nn;

std::string text_of(const at::Tensor& t) {
  return is_dtensor(t)
      ? c10::str(to_string(*DTensor(t).spec()), DTensor(t).to_local().sizes())
      : c10::str("plain ", t.sizes(), t.scalar_type());
}

struct Case {
  std::string name;
  std::function<nn::Sequential()> make;
  ParallelizePlan plan;
};

struct BlockImpl : nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const auto y = norm(x);
    return x + down(at::gelu(up(y)));
  }
  nn::LayerNorm norm =
      register_module("norm", nn::LayerNorm(std::vector<int64_t>{12}));
  nn::Linear up = register_module("up", nn::Linear(12, 24));
  nn::Linear down = register_module("down", nn::Linear(24, 12));
};
TORCH_MODULE(Block);

ParallelizePlan block_plan() {
  return {
      {"0.norm", SequenceParallel({.use_local_output = false})},
      {"0.up", ColwiseParallel({.input_layouts = Shard(1)})},
      {"0.down",
       RowwiseParallel(
           {.output_layouts = Shard(1), .use_local_output = false})}};
}

nn::LayerNorm norm() {
  return nn::LayerNorm(std::vector<int64_t>{12});
}

std::vector<Case> cases() {
  const auto linear = [] { return nn::Sequential(nn::Linear(12, 24)); };
  return {
      {"colwise", linear, {{"0", ColwiseParallel()}}},
      {"colwise in units",
       [] { return nn::Sequential(nn::Linear(12, 9)); },
       {{"0", ColwiseParallel({.use_local_output = false, .multiple_of = 3})}}},
      {"colwise, gathered",
       linear,
       {{"0", ColwiseParallel({.output_layouts = Replicate()})}}},
      {"rowwise",
       linear,
       {{"0", RowwiseParallel({.input_layouts = Replicate()})}}},
      {"rowwise in units, a term",
       linear,
       {{"0",
         RowwiseParallel(
             {.input_layouts = Replicate(),
              .output_layouts = Partial(),
              .use_local_output = false,
              .multiple_of = 4})}}},
      {"sequence",
       [] { return nn::Sequential(norm()); },
       {{"0", SequenceParallel()}}},
      {"a block", [] { return nn::Sequential(Block()); }, block_plan()}};
}

// Compares every rank's forward pass of a deferred model with that of a real
// model.
void expect_alike(const Case& c, const DeviceMesh& mesh) {
  const auto pass = [&](nn::Sequential module, bool data) {
    parallelize_module(*module, mesh, c.plan);
    const auto x = uniform({2, 4, 12}, 3).to(at::kFloat);
    const at::Tensor cut = distribute_tensor(
        data ? x : x.to(at::kMeta), mesh, {Shard(1)}, std::nullopt);
    return module->forward(cut);
  };
  nn::Sequential described{nullptr};
  {
    const DeferredInit scope;
    described = c.make();
  }
  const auto mine = pass(described, false);
  EXPECT_TRUE(mine.is_meta()) << c.name;
  EXPECT_EQ(text_of(mine), text_of(pass(c.make(), true))) << c.name;
}

TEST(DescribedStyles, GiveTheLayoutsOfThePassWithData) {
  for (const int64_t ranks : {1, 2, 4}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const auto& c : cases()) {
        expect_alike(c, mesh);
      }
    });
  }
}

TEST(DescribedStyles, OnOneDimensionOfTwo) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    for (const auto& c : cases()) {
      expect_alike(c, mesh["tp"]);
    }
  });
}

at::Tensor attention_of(
    nn::MultiheadAttention& attention,
    const DeviceMesh& mesh,
    bool data) {
  parallelize_module(
      *attention, mesh, AttentionParallel({.use_local_output = false}));
  auto x = uniform({5, 2, 24}, 3).to(at::kFloat);
  const at::Tensor whole = distribute_tensor(
      data ? x : x.to(at::kMeta), mesh, {Replicate()}, std::nullopt);
  return std::get<0>(attention->forward(whole, whole, whole));
}

TEST(DescribedStyles, OfAttention) {
  for (const int64_t ranks : {2, 3, 5}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      nn::MultiheadAttention real(24, 4);
      nn::MultiheadAttention described{nullptr};
      {
        const DeferredInit scope;
        described = nn::MultiheadAttention(24, 4);
      }
      const auto truth = attention_of(real, mesh, true);
      const auto mine = attention_of(described, mesh, false);
      EXPECT_TRUE(mine.is_meta());
      EXPECT_EQ(text_of(mine), text_of(truth)) << ranks;
    });
  }
}

// Returns the layouts of logits, loss and gradient, for plain or distributed
// targets.
std::vector<std::string>
losses(const DeviceMesh& mesh, bool data, bool plain_target) {
  const auto device = data ? at::kCPU : at::kMeta;
  at::Tensor logits = distribute_tensor(
      uniform({6, 10}, 3).to(device), mesh, {Shard(1)}, std::nullopt);
  logits.set_requires_grad(true);
  auto target = at::arange(6).to(device);
  if (!plain_target) {
    target = distribute_tensor(target, mesh, {Replicate()}, std::nullopt);
  }
  const auto parallel = loss_parallel();
  std::vector<std::string> texts;
  for (const auto reduction : {at::Reduction::Mean, at::Reduction::None}) {
    const auto loss =
        at::cross_entropy_loss(logits, target, {}, reduction, -100, 0.1);
    EXPECT_EQ(loss.is_meta(), !data);
    texts.push_back(text_of(loss));
    logits.mutable_grad() = at::Tensor();
    loss.sum().backward();
    texts.push_back(text_of(logits.grad()));
  }
  return texts;
}

TEST(DescribedStyles, OfALossOnCutClasses) {
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (const bool plain_target : {true, false}) {
        EXPECT_EQ(
            losses(mesh, false, plain_target),
            losses(mesh, true, plain_target));
      }
    });
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
