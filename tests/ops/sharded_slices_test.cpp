// SPDX-License-Identifier: BSD-3-Clause
// Rows of a sharded dimension: the results and gradients of the plain operator,
// with less communication than redistributing the tensor.
#include <tests/ops/against_plain.h>
#include <tests/ops/oracle.h>

#include <cmath>
#include <limits>

namespace dtensor {
namespace TEST_SOURCE {

using namespace against_plain;
using testing::Collectives;

std::string layout_of(const at::Tensor& t) {
  std::string text;
  for (const auto& p : DTensor(t).placements()) {
    text += (text.empty() ? "" : ", ") + to_string(p);
  }
  return text;
}

at::Tensor whole(const at::Tensor& t) {
  return DTensor(t).full_tensor();
}

// Checks results and gradients in every layout, also with empty shards.
void check_everywhere(const std::vector<OpCase>& cases) {
  check_cases(cases);
  Failures failures;
  run_ranks(7, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {7});
    for (const auto& c : cases) {
      check_case(c, mesh, failures);
    }
  });
  EXPECT_EQ(failures.text(), "");
}

// --- select -----------------------------------------------------------------

TEST(ShardedSelect, InEveryLayout) {
  const auto x = numbers({5, 6, 4}, 1);
  const auto turned = numbers({4, 6, 5}, 2).permute({2, 1, 0});
  check_everywhere({
      unary("first", x, [](auto& t) { return t[0]; }),
      unary("last", x, [](auto& t) { return t.select(0, -1); }),
      unary("middle", x, [](auto& t) { return t.select(-2, 3); }),
      unary(
          "of the last dimension", x, [](auto& t) { return t.select(2, -2); }),
      unary("an element", x, [](auto& t) { return t[4][1][-1]; }),
      unary("not contiguous", turned, [](auto& t) { return t.select(1, 2); }),
      unary(
          "of a view",
          x,
          [](auto& t) { return t.narrow(0, 1, 3).select(0, 2); }),
      unary("squared", x, [](auto& t) { return t[1] * t[3] + t[1]; }),
  });
}

TEST(ShardedSelect, CommunicatesNothing) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const auto plain = numbers({5, 6}, 1);
    const at::Tensor x = leaf(place(plain, mesh, {Shard(0), Shard(1)}));
    const at::Tensor both = leaf(place(plain, mesh, {Shard(0), Shard(0)}));
    Collectives collectives;
    const auto row = x[3];
    const auto element = x[3].select(0, -1);
    const auto of_both = both[-1];
    EXPECT_EQ(layout_of(row), "P(sum), S(0)");
    EXPECT_EQ(layout_of(element), "P(sum), P(sum)");
    EXPECT_EQ(layout_of(of_both), "P(sum), P(sum)");
    // A gradient that all ranks have stays in the shards.
    for (const auto& [y, of] : {std::make_pair(element, x), {of_both, both}}) {
      const auto ones = replicate_tensor(at::ones_like(whole(y)), mesh);
      collectives.take();
      const auto grad = torch::autograd::grad({y}, {of}, {ones})[0];
      EXPECT_EQ(collectives.take(), "");
      EXPECT_EQ(layout_of(grad), layout_of(of));
    }
    EXPECT_TRUE(at::equal(whole(row), plain[3]));
  });
}

// The gradient of a shard of the row is gathered: 6 numbers, not 30.
TEST(ShardedSelect, GathersTheGradientOfTheRow) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = leaf(place(numbers({5, 6}, 1), mesh, {Shard(0)}));
    const auto row = x[1];
    const at::Tensor grad = place(numbers({6}, 2), mesh, {Shard(0)});
    Collectives collectives;
    const auto of_x = torch::autograd::grad({row}, {x}, {grad})[0];
    EXPECT_EQ(collectives.take(), "all_gather 24");
    EXPECT_EQ(layout_of(of_x), "S(0)");
    EXPECT_TRUE(at::equal(whole(of_x)[1], numbers({6}, 2)));
  });
}

TEST(ShardedSelect, OtherRowsDoNotMatter) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    auto plain = numbers({6, 4}, 1);
    plain[0].fill_(std::numeric_limits<double>::quiet_NaN());
    plain[3].fill_(std::numeric_limits<double>::infinity());
    const at::Tensor x = place(plain, mesh, {Shard(0)});
    for (const int64_t i : {1, 2, 4, 5}) {
      EXPECT_TRUE(at::equal(whole(x[i]), plain[i]));
    }
    EXPECT_TRUE(at::equal(whole(x[3]), plain[3]));
    EXPECT_TRUE(whole(x[0]).isnan().all().item<bool>());
  });
}

TEST(ShardedSelect, OfEveryDtype) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto dtype :
         {at::kByte,
          at::kChar,
          at::kShort,
          at::kInt,
          at::kLong,
          at::kHalf,
          at::kBFloat16,
          at::kFloat,
          at::kComplexFloat,
          at::kBool,
          at::kUInt16,
          at::kFloat8_e4m3fn}) {
      const auto plain = numbers({4, 6}, 1).mul(8).to(dtype);
      const at::Tensor x = distribute_tensor(plain, mesh, {Shard(0)});
      const bool moves = dtype == at::kBool || dtype == at::kUInt16 ||
          dtype == at::kFloat8_e4m3fn;
      EXPECT_EQ(layout_of(x[2]), moves ? "S(0)" : "P(sum)") << dtype;
      EXPECT_TRUE(at::equal(
          whole(x[2]).to(at::kComplexDouble), plain[2].to(at::kComplexDouble)))
          << dtype;
    }
  });
}

TEST(ShardedSelect, SecondDerivatives) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto plain = numbers({5, 4}, 1);
    const auto run = [](const at::Tensor& x) {
      const auto loss = (x[1].pow(3) * x.select(0, -1)).sum();
      const auto grad = torch::autograd::grad(
          {loss}, {x}, {}, true, /*create_graph=*/true)[0];
      return torch::autograd::grad({grad.pow(2).sum()}, {x})[0];
    };
    const auto truth = run(leaf(plain));
    for (const auto& p : {Shard(0), Shard(1), Replicate()}) {
      const auto got = run(leaf(place(plain, mesh, {p})));
      EXPECT_TRUE(at::allclose(whole(got), truth)) << p;
    }
  });
}

// A write changes the view and every other view that shares its memory.
TEST(ShardedSelect, WritesReachTheTensor) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    auto truth = numbers({5, 4}, 1);
    const at::Tensor x = place(truth, mesh, {Shard(0)}).clone();
    const auto row = x[3];
    const auto part = row.narrow(0, 1, 2);
    EXPECT_EQ(layout_of(row), "P(sum)");
    EXPECT_EQ(layout_of(part), "P(sum)");
    part.exp_(); // not linear
    truth[3].narrow(0, 1, 2).exp_();
    EXPECT_TRUE(at::equal(whole(row), truth[3]));
    EXPECT_TRUE(at::equal(whole(x), truth));
    row.mul_(row).clamp_(0, 9);
    truth[3].mul_(truth[3]).clamp_(0, 9);
    EXPECT_TRUE(at::equal(whole(part), truth[3].narrow(0, 1, 2)));
    EXPECT_EQ(layout_of(row), "P(sum)");
    x.select(1, -1) = 5;
    x[0] += 1;
    x[1].fill_(2);
    truth.select(1, -1) = 5;
    truth[0] += 1;
    truth[1].fill_(2);
    EXPECT_TRUE(at::equal(whole(x), truth));
    EXPECT_EQ(layout_of(x), "S(0)");
  });
}

// The row is summed, and not the tensor redistributed.
TEST(ShardedSelect, AWriteSumsTheRow) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({6, 4}, 1), mesh, {Shard(0)}).clone();
    Collectives collectives;
    x[1].add_(1);
    EXPECT_EQ(collectives.take(), "all_reduce 32");
    x[4] = 3;
    EXPECT_EQ(collectives.take(), "all_reduce 32");
  });
}

// --- slice ------------------------------------------------------------------

TEST(ShardedSlice, InEveryLayout) {
  const auto x = numbers({11, 6, 3}, 1);
  const auto turned = numbers({3, 6, 11}, 2).permute({2, 1, 0});
  check_everywhere({
      unary("rows", x, [](auto& t) { return t.slice(0, 2, 9); }),
      unary("first", x, [](auto& t) { return t.slice(0, 0, 8); }),
      unary("all but the first", x, [](auto& t) { return t.slice(0, 1); }),
      unary("last", x, [](auto& t) { return t.slice(0, -7); }),
      unary("few", x, [](auto& t) { return t.slice(0, 5, 6); }),
      unary("none", x, [](auto& t) { return t.slice(0, 4, 4); }),
      unary("every second", x, [](auto& t) { return t.slice(0, 0, 11, 2); }),
      unary("every third", x, [](auto& t) { return t.slice(0, 1, 11, 3); }),
      unary("a long step", x, [](auto& t) { return t.slice(0, 1, 11, 1000); }),
      unary("columns", x, [](auto& t) { return t.narrow(1, 1, 4); }),
      unary("not contiguous", turned, [](auto& t) { return t.slice(0, 3); }),
      unary(
          "of a slice",
          x,
          [](auto& t) { return t.slice(0, 1, 10, 2).slice(0, 1, 4); }),
      unary(
          "shifted",
          x,
          [](auto& t) { return t.slice(0, 1) - t.slice(0, 0, -1); }),
      unary("squared", x, [](auto& t) { return t.slice(0, 3).pow(2); }),
  });
}

// 8 rows of 4 numbers on 4 ranks: 2 rows each.
TEST(ShardedSlice, MovesRowsThatChangeRanks) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {4});
    const auto plain = numbers({8, 4}, 1);
    const at::Tensor x = leaf(place(plain, mesh, {Shard(0)}));
    Collectives collectives;
    const auto expect = [&](const at::Tensor& y, const at::Tensor& truth) {
      EXPECT_EQ(layout_of(y), "S(0)");
      EXPECT_TRUE(at::equal(whole(y), truth));
      collectives.take();
    };
    const auto half = x.slice(0, 0, 8, 2);
    EXPECT_EQ(collectives.take(), "");
    expect(half, plain.slice(0, 0, 8, 2));
    // Ranks 1 to 3 send a row to the rank before.
    const auto rest = x.slice(0, 1);
    const auto sent = get_rank() > 0 ? 32 : 0;
    EXPECT_EQ(collectives.take(), c10::str("all_to_all ", sent));
    expect(rest, plain.slice(0, 1));
    const at::Tensor grad = place(numbers({7, 4}, 2), mesh, {Shard(0)});
    collectives.take();
    const auto of_x = torch::autograd::grad({rest}, {x}, {grad})[0];
    EXPECT_EQ(
        collectives.take(), c10::str("all_to_all ", get_rank() < 3 ? 32 : 0));
    EXPECT_EQ(layout_of(of_x), "S(0)");
  });
}

// A slice of fewer rows than ranks is a sum, as a row is.
TEST(ShardedSlice, OfFewRowsCommunicatesNothing) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {4});
    const auto plain = numbers({8, 4}, 1);
    const at::Tensor x = leaf(place(plain, mesh, {Shard(0)}));
    Collectives collectives;
    const auto y = x.slice(0, 3, 6);
    EXPECT_EQ(layout_of(y), "P(sum)");
    const auto ones = replicate_tensor(at::ones({3, 4}, at::kDouble), mesh);
    collectives.take();
    const auto grad = torch::autograd::grad({y}, {x}, {ones})[0];
    EXPECT_EQ(collectives.take(), "");
    EXPECT_EQ(layout_of(grad), "S(0)");
    EXPECT_TRUE(at::equal(whole(y), plain.slice(0, 3, 6)));
  });
}

// Gradients that all ranks have, or partial ones, end in shards.
TEST(ShardedSlice, GradientsAreSharded) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto plain = numbers({8, 4}, 1);
    const auto grad = numbers({6, 4}, 2);
    auto truth = at::zeros_like(plain);
    truth.slice(0, 1, 7).copy_(grad);
    const at::Tensor x = leaf(place(plain, mesh, {Shard(0)}));
    for (const auto& p :
         {Shard(0), Shard(1), Replicate(), Partial(ReduceOp::kSum)}) {
      const at::Tensor g = place(grad, mesh, {p});
      Collectives collectives;
      const auto got = torch::autograd::grad({x.slice(0, 1, 7)}, {x}, {g})[0];
      EXPECT_EQ(layout_of(got), "S(0)") << p;
      EXPECT_TRUE(at::equal(whole(got), truth)) << p;
    }
  });
}

TEST(ShardedSlice, OfHeads) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto plain = numbers({12, 4}, 1);
    const at::Tensor x = leaf(place(plain, mesh, {Shard(0, 4)}));
    const auto y = x.slice(0, 2, 11);
    EXPECT_EQ(layout_of(y), "S(0)");
    EXPECT_TRUE(at::equal(whole(y), plain.slice(0, 2, 11)));
    const auto grad = torch::autograd::grad({y.pow(2).sum()}, {x})[0];
    EXPECT_TRUE(
        at::equal(whole(grad).slice(0, 2, 11), 2 * plain.slice(0, 2, 11)));
  });
}

TEST(ShardedSlice, WritesReachTheTensor) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    auto truth = numbers({9, 4}, 1);
    const at::Tensor x = place(truth, mesh, {Shard(0)}).clone();
    x.slice(0, 1, 9, 2).mul_(2);
    x.slice(0, 2).exp_();
    x.slice(0, 4, 6).exp_();
    const auto thirds = x.slice(0, 0, 9, 3); // one row of each rank: a view
    thirds.neg_();
    x.add_(1);
    truth.slice(0, 1, 9, 2).mul_(2);
    truth.slice(0, 2).exp_();
    truth.slice(0, 4, 6).exp_();
    truth.slice(0, 0, 9, 3).neg_();
    truth.add_(1);
    EXPECT_TRUE(at::equal(whole(x), truth));
    EXPECT_TRUE(at::equal(whole(thirds), truth.slice(0, 0, 9, 3)));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
