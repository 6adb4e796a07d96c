// SPDX-License-Identifier: BSD-3-Clause
// Tests of ExplicitRedistributionContext.
#include <dtensor/ops/explicit_redistribution.h>
#include <dtensor/parallel/linear_styles.h>
#include <dtensor/parallel/loss_parallel.h>
#include <dtensor/parallel/style.h>
#include <dtensor/tensor/local_map.h>
#include <tests/warnings_of.h>

#include <thread>

#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;
using Options = ExplicitRedistributionOptions;
using Scope = ExplicitRedistributionContext;
constexpr auto kWarn = Options::Mode::kWarn;

class ExplicitRedistribution : public ::testing::Test {
 protected:
  template <class Fn>
  static void on_ranks(const Fn& fn) {
    run_ranks(2, [&] { fn(init_device_mesh(at::kCPU, {2}, {"tp"})); });
  }
  static at::Tensor matrix(const DeviceMesh& mesh, const Placement& p) {
    return place(numbers({4, 4}, 1), mesh, {p});
  }
};

const char* const kAddOfColumns =
    "[aten::add.Tensor] Implicit redistribution of argument \"other\" from "
    "f64[4, 4] on (tp=2): S(1) to S(0). Redistribute before the call, or allow "
    "it there by an ExplicitRedistributionContext with enable = false.";

TEST_F(ExplicitRedistribution, NamesTheOperandsThatEmbeddingBagGathers) {
  on_ranks([](const DeviceMesh& mesh) {
    const auto ids = [&](const Placement& p) {
      return place(at::arange(4), mesh, {p});
    };
    const auto offsets = place(at::zeros({1}, at::kLong), mesh, {Replicate()});
    const auto look_up =
        [&](const Placement& of_table, const Placement& of_ids, int64_t mode) {
          const Scope scope;
          at::embedding_bag(
              matrix(mesh, of_table), ids(of_ids), offsets, false, mode);
        };
    constexpr int64_t kSum = 0;
    constexpr int64_t kMax = 2;
    look_up(Shard(0), Replicate(), kSum);
    EXPECT_THAT(
        error_of([&] { look_up(Shard(0), Replicate(), kMax); }),
        ::testing::HasSubstr("argument \"weight\" from f64[4, 4]"));
    EXPECT_THAT(
        error_of([&] { look_up(Replicate(), Shard(0), kSum); }),
        ::testing::HasSubstr("argument \"indices\" from i64[4]"));
    const Scope scope;
    EXPECT_THAT(
        error_of([&] {
          constexpr bool kScaleGradByFrequency = true;
          at::embedding_bag(
              matrix(mesh, Replicate()),
              ids(Replicate()),
              offsets,
              kScaleGradByFrequency,
              kSum,
              false,
              place(numbers({4}, 1), mesh, {Shard(0)}));
        }),
        ::testing::HasSubstr("argument \"per_sample_weights\" from f64[4]"));
  });
}

TEST_F(ExplicitRedistribution, IsAnErrorBeforeAnythingIsSent) {
  on_ranks([](const DeviceMesh& mesh) {
    const auto rows = matrix(mesh, Shard(0));
    const auto columns = matrix(mesh, Shard(1));
    const auto truth = numbers({4, 4}, 1) * 2;
    for (int call = 0; call < 2; ++call) { // cold and warm
      EXPECT_TRUE(same(DTensor(rows + columns).full_tensor(), truth));
      const Scope only_explicit;
      CountCollectives collectives;
      EXPECT_EQ(error_of([&] { rows + columns; }), kAddOfColumns);
      EXPECT_EQ(collectives.count(), 0);
      EXPECT_TRUE(same(DTensor(rows + rows).full_tensor(), truth));
    }
  });
}

TEST_F(ExplicitRedistribution, ThatSendsNothingIsOnlySoIfStrict) {
  on_ranks([](const DeviceMesh& mesh) {
    const auto rows = matrix(mesh, Shard(0));
    const auto all = matrix(mesh, Replicate());
    const Scope only_explicit;
    rows + all;
    const Scope strict({.strict = true});
    EXPECT_EQ(
        error_of([&] { rows + all; }),
        "[aten::add.Tensor] Implicit redistribution of argument \"other\" from "
        "f64[4, 4] on (tp=2): R to S(0). Redistribute before the call, or "
        "allow it there by an ExplicitRedistributionContext with enable = "
        "false.");
  });
}

TEST_F(ExplicitRedistribution, NestsAndMayBeTurnedOff) {
  on_ranks([](const DeviceMesh& mesh) {
    const auto rows = matrix(mesh, Shard(0));
    const auto columns = matrix(mesh, Shard(1));
    const auto throws = [&] {
      return error_of([&] { rows + columns; }) == kAddOfColumns;
    };
    {
      const Scope only_explicit;
      EXPECT_TRUE(throws());
      {
        const Scope allowed({.enable = false});
        EXPECT_FALSE(throws());
        const Scope again;
        EXPECT_TRUE(throws());
      }
      EXPECT_TRUE(throws());
    }
    EXPECT_FALSE(throws());
  });
}

TEST_F(ExplicitRedistribution, MayWarnInstead) {
  on_ranks([](const DeviceMesh& mesh) {
    const auto rows = matrix(mesh, Shard(0));
    const auto columns = matrix(mesh, Shard(1));
    const test_text::Warnings warnings;
    for (size_t scope = 1; scope < 3; ++scope) {
      const Scope warns({.mode = kWarn});
      for (int call = 0; call < 3; ++call) {
        EXPECT_TRUE(same(
            DTensor(rows + columns).full_tensor(), numbers({4, 4}, 1) * 2));
      }
      ASSERT_EQ(warnings.texts().size(), scope); // once in each
      EXPECT_EQ(warnings.texts().back(), kAddOfColumns);
    }
  });
}

TEST_F(ExplicitRedistribution, NamesModuleAndPass) {
  on_ranks([](const DeviceMesh& mesh) {
    const auto x = leaf(matrix(mesh, Shard(0)));
    const auto y = x * x;
    const Scope only_explicit;
    const auto text = error_of([&] {
      const detail::ModuleScope module("mlp.up");
      y.backward(matrix(mesh, Shard(1)));
    });
    EXPECT_EQ(
        text.substr(0, text.find(" of argument")),
        "[aten::mul.Tensor] Implicit redistribution in module \"mlp.up\" in a "
        "backward pass");
  });
}

// A context applies to the backward pass on any thread. LibTorch runs the nodes
// of a device in its own threads, and a program may use other threads. All
// these threads work for the rank that made the nodes.
TEST_F(ExplicitRedistribution, ABackwardPassSeesItOnAnyThread) {
  on_ranks([](const DeviceMesh& mesh) {
    const auto x = leaf(matrix(mesh, Shard(0)));
    const auto y = x * x;
    const auto gradient = matrix(mesh, Shard(1));
    std::string inside;
    std::string outside;
    {
      const Scope only_explicit;
      std::thread([&] {
        inside = error_of([&] { y.backward(gradient, /*retain_graph=*/true); });
      }).join();
    }
    std::thread([&] {
      outside = error_of([&] { y.backward(gradient); });
    }).join();
    EXPECT_NE(inside.find("in a backward pass"), inside.npos) << inside;
    EXPECT_EQ(outside, "nothing was thrown");
  });
}

TEST_F(ExplicitRedistribution, WhatTheProgramSaysIsExplicit) {
  on_ranks([](const DeviceMesh& mesh) {
    const Scope strict({.strict = true});
    const auto x = leaf(matrix(mesh, Shard(0)));
    DTensor(x).redistribute({Shard(1)}).sum().backward();
    DTensor(x).full_tensor().sum().backward();
    local_map(
        [](const at::Tensor& t) { return t * 2; },
        {Replicate()},
        {{Replicate()}},
        {.redistribute_inputs = true})(x)
        .sum()
        .backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  });
}

// In forward and backward passes, boundaries of styles are explicit, and the
// reduction of gradients is explicit, too.
TEST_F(ExplicitRedistribution, BoundariesOfStylesAreExplicit) {
  on_ranks([](const DeviceMesh& mesh) {
    torch::manual_seed(1);
    torch::nn::Sequential net(
        torch::nn::Linear(4, 6), torch::nn::ReLU(), torch::nn::Linear(6, 4));
    net->to(at::kDouble);
    const auto x = numbers({3, 4}, 1);
    const auto truth = net->forward(x).detach();
    parallelize_module(
        *net, mesh, {{"0", ColwiseParallel()}, {"2", RowwiseParallel()}});
    const Scope only_explicit;
    CountCollectives collectives;
    const auto y = net->forward(x);
    y.pow(2).sum().backward();
    EXPECT_GT(collectives.count(), 0);
    EXPECT_TRUE(at::allclose(y.detach(), truth));
  });
}

TEST_F(ExplicitRedistribution, RegionsSayIt) {
  on_ranks([](const DeviceMesh& mesh) {
    const auto x = leaf(matrix(mesh, Shard(0)));
    const auto bias = place(numbers({4}, 2), mesh, {Partial()});
    const Scope only_explicit;
    for (const bool records : {true, false}) {
      const at::AutoGradMode mode(records);
      const auto text =
          error_of([&] { at::layer_norm(x, {4}, bias, std::nullopt); });
      EXPECT_NE(
          text.find("Implicit redistribution of argument \"weight\" from "
                    "f64[4] on (tp=2): P(sum) to R"),
          text.npos)
          << text;
    }
  });
}

// Kernels that redistribute their operands themselves report the
// redistribution.
TEST_F(ExplicitRedistribution, KernelsSayIt) {
  on_ranks([](const DeviceMesh& mesh) {
    const auto partial = matrix(mesh, Partial());
    const auto number = place(numbers({}, 1), mesh, {Partial()});
    const auto rows = matrix(mesh, Shard(0));
    const auto columns = matrix(mesh, Shard(1));
    const auto ids = place(at::zeros({4}, at::kLong), mesh, {Shard(0)});
    const Scope only_explicit;
    const auto moves = [](const auto& call) {
      const auto text = error_of(call);
      const auto from = text.find("of argument");
      return from == text.npos ? text
                               : text.substr(from, text.find(". Re") - from);
    };
    EXPECT_EQ(
        moves([&] { number.item(); }),
        "of argument \"self\" from f64[] on (tp=2): P(sum) to R");
    EXPECT_EQ(
        moves([&] { at::norm(partial); }),
        "of argument \"self\" from f64[4, 4] on (tp=2): P(sum) to R");
    EXPECT_EQ(
        moves([&] { columns.nonzero(); }),
        "of argument \"self\" from f64[4, 4] on (tp=2): S(1) to S(0)");
    EXPECT_EQ(
        moves([&] { at::cross_entropy_loss(columns, ids); }),
        "of argument \"input\" from f64[4, 4] on (tp=2): S(1) to R");
    // These operators combine results, which is not a redistribution.
    at::norm(rows);
    rows.nonzero();
    const auto parallel = loss_parallel();
    at::cross_entropy_loss(
        columns, place(at::zeros({4}, at::kLong), mesh, {Replicate()}));
  });
}

// Ranks outside the mesh throw, too.
TEST_F(ExplicitRedistribution, AllRanksThrow) {
  run_ranks(3, [] {
    const auto mesh = make_device_mesh(at::kCPU, {2}, {0, 2}, {"tp"});
    const auto rows = distribute_tensor(numbers({4, 4}, 1), mesh, {Shard(0)});
    const auto columns =
        distribute_tensor(numbers({4, 4}, 1), mesh, {Shard(1)});
    const Scope only_explicit;
    EXPECT_EQ(error_of([&] { rows + columns; }), kAddOfColumns);
  });
}

TEST_F(ExplicitRedistribution, OneRankSendsNothing) {
  const auto mesh = init_device_mesh(at::kCPU, {1});
  const Scope only_explicit;
  matrix(mesh, Shard(0)) + matrix(mesh, Shard(1));
}

} // namespace TEST_SOURCE
} // namespace dtensor
