// SPDX-License-Identifier: BSD-3-Clause
// Tests of operators that move, add, drop or repeat complete dimensions.
#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

TEST(Shape, PermutesAsPlainTensorsDo) {
  const auto x = numbers({4, 5, 3}, 1);
  const auto m = numbers({5, 4}, 2);
  check_cases({
      unary("transpose", x, [](auto& t) { return t.transpose(0, -1); }),
      unary(
          "permute",
          x,
          [](auto& t) {
            return t.permute({2, 0, -2});
          }),
      unary("movedim", x, [](auto& t) { return t.movedim(0, 2); }),
      unary("t", m, [](auto& t) { return t.t(); }),
      unary("mT", x, [](auto& t) { return t.mT(); }),
      unary(
          "of a transposed", m.t(), [](auto& t) { return t.transpose(0, 1); }),
      unary("0-d", numbers({}, 3), [](auto& t) { return t.transpose(0, -1); }),
  });
}

TEST(Shape, AddsAndDropsDimensions) {
  const auto x = numbers({1, 5, 1, 3}, 1);
  check_cases({
      unary("unsqueeze", x, [](auto& t) { return t.unsqueeze(2); }),
      unary("unsqueeze last", x, [](auto& t) { return t.unsqueeze(-1); }),
      unary("squeeze", x, [](auto& t) { return t.squeeze(); }),
      unary("squeeze 0", x, [](auto& t) { return t.squeeze(0); }),
      unary("squeeze of no 1", x, [](auto& t) { return t.squeeze(1); }),
      unary(
          "squeeze dims",
          x,
          [](auto& t) {
            return t.squeeze({0, 1, -2});
          }),
      unary(
          "unsqueeze 0-d",
          numbers({}, 3),
          [](auto& t) { return t.unsqueeze(0); }),
      unary("squeeze 0-d", numbers({}, 3), [](auto& t) { return t.squeeze(); }),
  });
}

// squeeze drops dimensions of global size 1 only. With 3 rows on 2 ranks, the
// second rank has one local row.
TEST(Shape, SqueezesGlobalOnesOnly) {
  check_cases({
      unary("squeeze", numbers({3, 1}, 1), [](auto& t) { return t.squeeze(); }),
      unary(
          "squeeze 0",
          numbers({3, 1}, 1),
          [](auto& t) { return t.squeeze(0); }),
  });
}

TEST(Shape, RepeatsFlipsAndRolls) {
  const auto x = numbers({4, 5}, 1);
  const auto one = numbers({4, 1, 3}, 1);
  check_cases({
      unary(
          "repeat",
          x,
          [](auto& t) {
            return t.repeat({2, 1, 3});
          }),
      unary("flip", x, [](auto& t) { return t.flip({1}); }),
      unary(
          "flip both",
          x,
          [](auto& t) {
            return t.flip({0, 1});
          }),
      unary("roll", x, [](auto& t) { return t.roll(2, 0); }),
      unary("roll all", x, [](auto& t) { return t.roll(3); }),
      unary("rot90", x, [](auto& t) { return t.rot90(); }),
      unary("diagonal", one, [](auto& t) { return t.diagonal(1, 0, 2); }),
      unary("unfold", x, [](auto& t) { return t.unfold(1, 2, 1); }),
  });
}

TEST(Shape, Expands) {
  const auto one = numbers({4, 1, 3}, 1);
  check_cases({
      unary(
          "expand",
          one,
          [](auto& t) {
            return t.expand({4, 5, 3});
          }),
      unary(
          "expand new",
          one,
          [](auto& t) {
            return t.expand({2, -1, 5, 3});
          }),
      unary(
          "expand as it is",
          one,
          [](auto& t) {
            return t.expand({4, 1, 3});
          }),
      unary(
          "broadcast_to",
          one,
          [](auto& t) {
            return t.broadcast_to({2, 4, 1, 3});
          }),
  });
}

TEST(Shape, KeepsShardsWithoutCommunication) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const at::Tensor x = place(numbers({5, 1, 4}, 1), mesh, {Shard(0)});
    CountCollectives collectives;
    EXPECT_EQ(to_string(DTensor(x.transpose(0, 2)).placements()), "S(2)");
    EXPECT_EQ(to_string(DTensor(x.permute({1, 0, 2})).placements()), "S(1)");
    EXPECT_EQ(to_string(DTensor(x.unsqueeze(0)).placements()), "S(1)");
    EXPECT_EQ(to_string(DTensor(x.squeeze()).placements()), "S(0)");
    EXPECT_EQ(to_string(DTensor(x.expand({5, 7, 4})).placements()), "S(0)");
    EXPECT_EQ(to_string(DTensor(x.repeat({2, 1, 3, 1})).placements()), "S(1)");
    EXPECT_EQ(to_string(DTensor(x.flip({2})).placements()), "S(0)");
    EXPECT_EQ(collectives.count(), 0);
  });
}

TEST(Shape, KeepsPartialAndStridedShards) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const at::Tensor p =
        place(numbers({4, 1}, 1), mesh, {Partial(ReduceOp::kSum)});
    const auto plain = numbers({8, 3}, 1);
    const at::Tensor s = place(plain, mesh, {StridedShard(0, 2)});
    CountCollectives collectives;
    EXPECT_EQ(to_string(DTensor(p.t()).placements()), "P(sum)");
    EXPECT_EQ(to_string(DTensor(p.expand({4, 3})).placements()), "P(sum)");
    const DTensor t(s.transpose(0, 1));
    EXPECT_EQ(to_string(t.placements()), "SS(1, sf=2)");
    EXPECT_EQ(collectives.count(), 0);
    EXPECT_TRUE(at::equal(t.full_tensor(), plain.t()));
  });
}

TEST(Shape, ChangesTensorsInPlace) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto plain = numbers({3, 1, 4}, 1);
    at::Tensor x = place(plain, mesh, {Shard(0)});
    x.squeeze_();
    EXPECT_EQ(to_string(*DTensor(x).spec()), "f64[3, 4] on (tp=2): S(0)");
    x.t_();
    EXPECT_EQ(to_string(DTensor(x).placements()), "S(1)");
    x.unsqueeze_(0);
    EXPECT_EQ(to_string(DTensor(x).placements()), "S(2)");
    x.transpose_(0, 2);
    EXPECT_EQ(to_string(DTensor(x).placements()), "S(0)");
    x.squeeze_(-1);
    EXPECT_TRUE(at::equal(DTensor(x).full_tensor(), plain.squeeze()));
  });
}

TEST(Shape, ChangesStridesInPlace) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto plain = numbers({3, 4}, 1);
    at::Tensor x = place(plain, mesh, {Replicate()});
    x.swapaxes_(0, 1);
    EXPECT_EQ(to_string(*DTensor(x).spec()), "f64[4, 3; 1, 4] on (tp=2): R");
    EXPECT_TRUE(at::equal(DTensor(x).full_tensor(), plain.t()));
    EXPECT_TRUE(x.as_strided_({4, 3}, {1, 4}).is_same(x));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
