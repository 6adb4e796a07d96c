// SPDX-License-Identifier: BSD-3-Clause
// ColwiseParallel and RowwiseParallel of convolutions compared with the plain
// module. Also a network with sharded spatial dimensions.
#include <dtensor/debug/comm_debug_mode.h>
#include <dtensor/dtensor.h>
#include <tests/error_of.h>
#include <tests/parallel/modules.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::test_modules;
using test_text::error_of;

constexpr int64_t kIn = 5;
constexpr int64_t kOut = 7;

/// Layouts and options of one case.
struct Case {
  Placement input = Replicate();
  Placement output = Replicate();
  bool bias = true;
  bool local_output = true;
  bool dtensor_input = false;
};

std::string describe(const Case& c, const std::string& style, int64_t ranks) {
  return style + " " + to_string(c.input) + " -> " + to_string(c.output) +
      (c.bias ? "" : " without bias") +
      (c.local_output ? "" : ", DTensor output") +
      (c.dtensor_input ? ", DTensor input" : "") + " on " +
      std::to_string(ranks);
}

template <class Make>
void expect_as_plain(
    const Make& make,
    const at::Tensor& whole,
    const DeviceMesh& mesh,
    const ParallelStyle& style,
    const Case& c,
    const std::string& what) {
  auto plain = make();
  const auto x = whole.detach().requires_grad_(true);
  const auto truth = plain->forward(x);
  const auto grad = uniform(truth.sizes(), 99);
  truth.backward(grad);

  auto mine = make();
  parallelize_module(*mine, mesh, style);
  auto input = c.dtensor_input
      ? distribute_tensor(whole.detach(), mesh, {c.input}, std::nullopt)
      : part(whole, mesh, c.input);
  input.requires_grad_(true);
  const auto y = mine->forward(input);
  ASSERT_EQ(is_dtensor(y), !c.local_output) << what;
  expect_close(
      y, c.local_output ? part(truth, mesh, c.output) : truth.detach(), what);
  y.backward(
      c.local_output ? part(grad, mesh, c.output)
                     : distribute_tensor(grad, mesh, {c.output}, std::nullopt));
  expect_same_gradients(*mine, *plain, what);
  expect_close(
      input.grad(),
      c.dtensor_input ? x.grad() : part(x.grad(), mesh, c.input),
      what + ": gradient of the input");
}

// Calls `run` with a convolution of one, two and three dimensions.
template <class Run>
void for_each_module(bool bias, const Run& run) {
  run(
      [=] {
        return filled(torch::nn::Conv1d(
            torch::nn::Conv1dOptions(kIn, kOut, 3).padding(1).bias(bias)));
      },
      uniform({4, kIn, 6}, 5));
  run(
      [=] {
        return filled(torch::nn::Conv2d(
            torch::nn::Conv2dOptions(kIn, kOut, 3).stride(2).bias(bias)));
      },
      uniform({2, kIn, 6, 5}, 6));
  run(
      [=] {
        return filled(torch::nn::Conv3d(
            torch::nn::Conv3dOptions(kIn, kOut, 2).bias(bias)));
      },
      uniform({3, kIn, 3, 4, 3}, 7));
}

// Calls `run` with transposed convolutions and convolutions of three groups.
template <class Run>
void for_each_other_module(bool bias, const Run& run) {
  namespace nn = torch::nn;
  run(
      [=] {
        return filled(nn::ConvTranspose1d(
            nn::ConvTranspose1dOptions(kIn, kOut, 3).padding(1).bias(bias)));
      },
      uniform({4, kIn, 6}, 5));
  run(
      [=] {
        return filled(nn::ConvTranspose2d(
            nn::ConvTranspose2dOptions(kIn, kOut, 3).stride(2).bias(bias)));
      },
      uniform({2, kIn, 3, 4}, 6));
  run(
      [=] {
        return filled(nn::ConvTranspose3d(
            nn::ConvTranspose3dOptions(kIn, kOut, 2).bias(bias)));
      },
      uniform({3, kIn, 3, 2, 3}, 7));
  run(
      [=] {
        return filled(
            nn::Conv1d(nn::Conv1dOptions(6, 9, 3).groups(3).bias(bias)));
      },
      uniform({4, 6, 6}, 5));
  run(
      [=] {
        return filled(nn::ConvTranspose2d(
            nn::ConvTranspose2dOptions(6, 9, 2).groups(3).bias(bias)));
      },
      uniform({2, 6, 3, 4}, 6));
}

using MakeStyle = std::function<std::shared_ptr<ParallelStyle>(const Case&)>;

void expect_all_as_plain(const std::string& name, const MakeStyle& style) {
  const std::vector<Placement> layouts{Replicate(), Shard(0), Shard(1)};
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      for (size_t i = 0; i < 72; ++i) {
        const Case c{
            layouts[i % 3],
            layouts[i / 3 % 3],
            i / 9 % 2 == 0,
            i / 18 % 2 == 0,
            i / 36 % 2 == 0};
        const auto expect = [&](const auto& make, const auto& whole) {
          // An uneven plain shard of samples is not accepted.
          if (!c.dtensor_input && c.input == Shard(0) &&
              whole.size(0) % ranks != 0) {
            return;
          }
          const auto what = describe(c, name, ranks);
          EXPECT_EQ(
              error_of([&] {
                expect_as_plain(make, whole, mesh, *style(c), c, what);
              }),
              "nothing was thrown")
              << what;
        };
        for_each_module(c.bias, expect);
        for_each_other_module(c.bias, expect);
      }
    });
  }
}

TEST(ConvolutionStyles, ColwiseShardsOutputChannels) {
  expect_all_as_plain("ColwiseParallel", [](const Case& c) {
    return std::make_shared<ColwiseParallel>(
        ColwiseOptions{c.input, c.output, c.local_output});
  });
}

TEST(ConvolutionStyles, RowwiseShardsInputChannels) {
  expect_all_as_plain("RowwiseParallel", [](const Case& c) {
    return std::make_shared<RowwiseParallel>(
        RowwiseOptions{c.input, c.output, c.local_output});
  });
}

// Returns two convolutions with an activation between them.
torch::nn::Sequential make_pair() {
  return filled(torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 5, 3).padding(1)),
      torch::nn::ReLU(),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(5, 4, 3).padding(1))));
}

// The number of hidden channels is not divisible by the number of ranks.
TEST(ConvolutionStyles, APairTakesOneAllReduceEachWay) {
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      auto plain = make_pair();
      auto mine = make_pair();
      parallelize_module(
          *mine, mesh, {{"0", ColwiseParallel()}, {"2", RowwiseParallel()}});
      EXPECT_EQ(layout_of(mine[0]->named_parameters()["weight"]), Shard(0));
      EXPECT_EQ(layout_of(mine[0]->named_parameters()["bias"]), Shard(0));
      EXPECT_EQ(layout_of(mine[2]->named_parameters()["weight"]), Shard(1));
      EXPECT_EQ(layout_of(mine[2]->named_parameters()["bias"]), Replicate());
      const auto x = uniform({2, 3, 6, 6}, 3).requires_grad_(true);
      const auto same_x = x.detach().clone().requires_grad_(true);
      const auto truth = plain->forward(x);
      truth.pow(2).sum().backward();
      CommDebugMode comm;
      const auto y = mine->forward(same_x);
      expect_close(y, truth, "output");
      y.pow(2).sum().backward();
      EXPECT_EQ(comm.get_total_counts(), 2);
      EXPECT_EQ(comm.get_comm_counts()[CollectiveKind::kAllReduce], 2);
      expect_same_gradients(*mine, *plain, "pair");
      expect_close(same_x.grad(), x.grad(), "gradient of the input");
    });
  }
}

// The network needs no style: replicated parameters and a sharded image.
TEST(ConvolutionStyles, ANetworkStaysShardedInSpace) {
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"rows"});
      auto plain = make_pair();
      auto mine = make_pair();
      distribute_module(*mine, mesh);
      const auto x = uniform({2, 3, 7, 6}, 3);
      const auto truth = plain->forward(x);
      truth.pow(2).sum().backward();
      CommDebugMode comm;
      const auto y =
          mine->forward(distribute_tensor(x, mesh, {Shard(2)}, std::nullopt));
      EXPECT_EQ(layout_of(y), Shard(2));
      EXPECT_EQ(comm.get_total_counts(), 2);
      EXPECT_EQ(comm.get_comm_counts()[CollectiveKind::kAllToAll], 2);
      expect_close(y, truth, "output");
      y.pow(2).sum().backward();
      expect_same_gradients(*mine, *plain, "network");
    });
  }
}

// Parameters are sharded by groups, without communication in between.
TEST(ConvolutionStyles, AChannelwiseConvolutionKeepsChannelsSharded) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto make = [] {
      return filled(torch::nn::Sequential(
          torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 1)),
          torch::nn::Conv2d(torch::nn::Conv2dOptions(6, 6, 3).groups(6)),
          torch::nn::ConvTranspose2d(
              torch::nn::ConvTranspose2dOptions(6, 4, 3))));
    };
    auto plain = make();
    auto mine = make();
    parallelize_module(
        *mine,
        mesh,
        {{"0", ColwiseParallel()},
         {"1", ColwiseParallel({.input_layouts = Shard(1)})},
         {"2", RowwiseParallel()}});
    EXPECT_EQ(layout_of(mine[1]->named_parameters()["weight"]), Shard(0));
    EXPECT_EQ(layout_of(mine[2]->named_parameters()["weight"]), Shard(0));
    const auto x = uniform({2, 3, 6, 6}, 3);
    const auto truth = plain->forward(x);
    truth.pow(2).sum().backward();
    CommDebugMode comm;
    const auto y = mine->forward(x);
    EXPECT_EQ(comm.get_total_counts(), 1);
    expect_close(y, truth, "output");
    y.pow(2).sum().backward();
    expect_same_gradients(*mine, *plain, "network");
  });
}

TEST(ConvolutionStyles, RefusesUnitsOfGroups) {
  run_ranks(1, [] {
    const auto mesh = init_device_mesh(at::kCPU, {1}, {"tp"});
    torch::nn::Conv2d grouped(torch::nn::Conv2dOptions(4, 4, 3).groups(2));
    EXPECT_EQ(
        error_of([&] {
          parallelize_module(
              *grouped, mesh, ColwiseParallel({.multiple_of = 2}));
        }),
        "[ColwiseParallel] the root module of type torch::nn::Conv2dImpl has "
        "groups = 2, and its channels are sharded by groups, not in S(0, u=2). "
        "Leave out multiple_of and fused_projections.");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
