// SPDX-License-Identifier: BSD-3-Clause
// Concatenation, splitting and slicing of tensors.
#include "tests/ops/against_plain.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

TEST(Concat, ConcatenatesTensors) {
  const auto a = numbers({4, 3}, 1);
  const auto b = numbers({4, 5}, 2);
  const auto c = numbers({4, 3}, 3);
  check_cases({
      {"cat", {a, b}, [](auto& in) { return TensorList{at::cat(in, 1)}; }},
      {"cat 0", {a, c}, [](auto& in) { return TensorList{at::cat(in, 0)}; }},
      {"stack", {a, c}, [](auto& in) { return TensorList{at::stack(in, 1)}; }},
      {"stack -1",
       {a, c},
       [](auto& in) { return TensorList{at::stack(in, -1)}; }},
      {"hstack", {a, b}, [](auto& in) { return TensorList{at::hstack(in)}; }},
      {"cat of 1-d",
       {numbers({5}, 1), numbers({2}, 2)},
       [](auto& in) { return TensorList{at::cat(in, 0)}; }},
      // Autograd makes a plain gradient for the skipped tensor.
      {"cat with nothing",
       {a, numbers({0}, 2)},
       [](auto& in) { return TensorList{at::cat(in, 0)}; },
       99,
       false},
  });
}

TEST(Concat, SplitsTensors) {
  const auto x = numbers({5, 6}, 1);
  const auto apart = [&](std::string name, auto fn) {
    return OpCase{std::move(name), {x}, [fn](const TensorList& in) {
                    return TensorList(fn(in[0]));
                  }};
  };
  check_cases({
      apart("split", [](auto& t) { return t.split(2, 1); }),
      apart("split 0", [](auto& t) { return t.split(2, 0); }),
      apart("one split", [](auto& t) { return t.split(INT64_MAX, 0); }),
      apart(
          "sizes",
          [](auto& t) {
            return t.split_with_sizes({1, 5}, -1);
          }),
      apart("chunk", [](auto& t) { return t.chunk(3, 1); }),
      apart("unbind", [](auto& t) { return t.unbind(0); }),
      apart("tensor_split", [](auto& t) { return t.tensor_split(4, 1); }),
      unary("one of split", x, [](auto& t) { return t.split(2, 1)[1]; }),
      unary("one of unbind", x, [](auto& t) { return t.unbind(1)[2]; }),
      unary("select", x, [](auto& t) { return t.select(1, -2); }),
      unary("select 0", x, [](auto& t) { return t[3]; }),
      unary("slice", x, [](auto& t) { return t.slice(0, 1, 4, 2); }),
      unary("slice all", x, [](auto& t) { return t.slice(0, -9, 99); }),
      unary("slice none", x, [](auto& t) { return t.slice(1, 3, 3); }),
      unary("narrow", x, [](auto& t) { return t.narrow(1, 2, 3); }),
      unary(
          "pad",
          x,
          [](auto& t) {
            return at::constant_pad_nd(t, {1, 0}, 0);
          }),
      unary(
          "pad 3",
          x,
          [](auto& t) {
            return at::constant_pad_nd(t, {0, 0, 2, 1}, 3);
          }),
  });
}

TEST(Concat, ScattersIntoSlices) {
  const auto x = numbers({5, 6}, 1);
  check_cases({
      {"slice_scatter",
       {x, numbers({5, 2}, 2)},
       [](auto& in) {
         return TensorList{at::slice_scatter(in[0], in[1], 1, 1, 5, 2)};
       }},
      {"slice_scatter all",
       {x, numbers({5, 6}, 2)},
       [](auto& in) { return TensorList{at::slice_scatter(in[0], in[1])}; }},
      {"select_scatter",
       {x, numbers({6}, 2)},
       [](auto& in) {
         return TensorList{at::select_scatter(in[0], in[1], 0, 3)};
       }},
  });
}

TEST(Concat, KeepsOtherShardsWithoutCommunication) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    at::Tensor x = leaf(place(numbers({5, 6}, 1), mesh, {Shard(0)}));
    const at::Tensor p =
        place(numbers({5, 6}, 1), mesh, {Partial(ReduceOp::kSum)});
    CountCollectives collectives;
    const auto halves = x.chunk(2, 1);
    EXPECT_EQ(to_string(DTensor(halves[1]).placements()), "S(0)");
    const at::Tensor y = at::cat({halves[1], halves[0]}, 1);
    EXPECT_EQ(to_string(DTensor(y).placements()), "S(0)");
    EXPECT_EQ(to_string(DTensor(x.select(1, 2)).placements()), "S(0)");
    EXPECT_EQ(to_string(DTensor(x.slice(0, 0, 5)).placements()), "S(0)");
    EXPECT_EQ(to_string(DTensor(x.slice(1, 1, 3)).placements()), "S(0)");
    EXPECT_EQ(to_string(DTensor(at::cat({p, p}, 0)).placements()), "P(sum)");
    EXPECT_EQ(to_string(DTensor(p.select(0, 1)).placements()), "P(sum)");
    y.backward(y.detach());
    EXPECT_EQ(to_string(DTensor(x.grad()).placements()), "S(0)");
    EXPECT_EQ(collectives.count(), 0);
  });
}

TEST(Concat, OfPartialAndReplicatedTensorsIsPartial) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto b = numbers({5, 6}, 2);
    const at::Tensor r = place(b, mesh, {Replicate()});
    for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
      const at::Tensor p = place(numbers({5, 6}, 1), mesh, {Partial(op)});
      const auto a = DTensor(p).full_tensor();
      CountCollectives collectives;
      const at::Tensor joined = at::cat({r, p}, 1);
      const at::Tensor stacked = at::stack({p, r}, 1);
      const at::Tensor written =
          at::slice_scatter(r, p.narrow(0, 1, 2), 0, 1, 3);
      EXPECT_EQ(collectives.count(), 0);
      const auto expect = [&](const at::Tensor& t, const at::Tensor& plain) {
        EXPECT_EQ(DTensor(t).placements()[0], Partial(op));
        EXPECT_TRUE(at::allclose(DTensor(t).full_tensor(), plain));
      };
      expect(joined, at::cat({b, a}, 1));
      expect(stacked, at::stack({a, b}, 1));
      expect(written, at::slice_scatter(b, a.narrow(0, 1, 2), 0, 1, 3));
    }
  });
}

// Splitting and joining complete blocks costs no communication. Each rank has a
// shard of q, of k and of v in a fused weight.
TEST(Concat, SlicesOfStridedShardsAreFree) {
  for (const int64_t rows : {12, 15}) { // 4 or 5 rows each over 2 ranks
    run_ranks(2, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
      const auto plain = leaf(numbers({rows, 2}, 1));
      at::Tensor x = leaf(place(plain.detach(), mesh, {StridedShard(0, 3)}));
      const int64_t piece = rows / 3;
      const auto take = [&](const at::Tensor& t) {
        auto sum = t.slice(0, 0, piece).exp() * t.slice(0, -piece) +
            t.slice(0, piece, 2 * piece);
        return sum.sum() + t.slice(0, piece).pow(3).sum();
      };
      CountCollectives collectives;
      EXPECT_EQ(
          to_string(DTensor(x.slice(0, piece)).placements()), "SS(0, sf=2)");
      EXPECT_EQ(to_string(DTensor(x.slice(0, 0, piece)).placements()), "S(0)");
      const auto loss = take(x);
      loss.backward(at::ones_like(loss));
      EXPECT_EQ(collectives.count(), 0);
      EXPECT_EQ(to_string(DTensor(x.grad()).placements()), "SS(0, sf=3)");
      take(plain).backward();
      EXPECT_LT(
          (DTensor(x.grad()).full_tensor() - plain.grad())
              .abs()
              .max()
              .item<double>(),
          1e-5);
      // Half a block cannot be sliced locally.
      EXPECT_EQ(to_string(DTensor(x.slice(0, 0, 2)).placements()), "S(1)");
      EXPECT_TRUE(at::equal(
          DTensor(x.slice(0, 0, 2)).full_tensor(), plain.slice(0, 0, 2)));
    });
  }
}

TEST(Concat, SplitsStridedShards) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto plain = leaf(numbers({12, 2}, 1));
    at::Tensor x = leaf(place(plain.detach(), mesh, {StridedShard(0, 3)}));
    CountCollectives collectives;
    const auto parts = x.split_with_sizes({8, 4});
    EXPECT_EQ(to_string(DTensor(parts[0]).placements()), "SS(0, sf=2)");
    EXPECT_EQ(to_string(DTensor(parts[1]).placements()), "S(0)");
    const auto thirds = x.chunk(3);
    const at::Tensor y = thirds[0] * thirds[2] + thirds[1];
    EXPECT_EQ(to_string(DTensor(y).placements()), "S(0)");
    y.backward(y.detach());
    EXPECT_EQ(collectives.count(), 0);
    EXPECT_EQ(to_string(DTensor(x.grad()).placements()), "SS(0, sf=3)");
    const auto truth = plain.chunk(3);
    const auto z = truth[0] * truth[2] + truth[1];
    z.backward(z.detach());
    EXPECT_TRUE(
        at::equal(DTensor(parts[0]).full_tensor(), plain.slice(0, 0, 8)));
    EXPECT_TRUE(at::equal(DTensor(x.grad()).full_tensor(), plain.grad()));
    // In the forward pass concatenation does not join blocks.
    const auto two = at::cat({thirds[0], thirds[1]});
    EXPECT_EQ(to_string(DTensor(two).placements()), "S(1)");
  });
}

// A slice of complete blocks is a view: writes to it reach the tensor.
TEST(Concat, ResultsOfSplitAreViews) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto plain = numbers({12, 2}, 1).clone();
    const at::Tensor x = place(plain, mesh, {StridedShard(0, 3)}).clone();
    x.slice(0, 4, 8).zero_();
    plain.slice(0, 4, 8).zero_();
    EXPECT_TRUE(at::equal(DTensor(x).full_tensor(), plain));
  });
}

// Slices across ranks along the sharded dimension are copies, and writes to
// them reach the shards.
TEST(Concat, WritesThroughViews) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    auto plain = numbers({5, 6}, 1);
    const at::Tensor x = place(plain.clone(), mesh, {Shard(0)});
    x.slice(1, 2, 4).zero_();
    x.select(1, 5).unsqueeze(0).zero_();
    plain.slice(1, 2, 4).zero_();
    plain.select(1, 5).zero_();
    EXPECT_TRUE(at::equal(DTensor(x).full_tensor(), plain));
    for (const auto& t : {at::Tensor(x), plain}) {
      t.slice(0, 1, 5).add_(1);
      t.slice(0, 1, 5).view({4, 2, 3}).select(1, 1).neg_();
    }
    EXPECT_TRUE(at::equal(DTensor(x).full_tensor(), plain));
    at::Tensor own = x.slice(0, 1, 5).clone();
    own.zero_();
    EXPECT_TRUE(
        at::equal(DTensor(own).full_tensor(), at::zeros({4, 6}, at::kDouble)));
    const auto one = init_device_mesh(at::kCPU, {2, 1});
    const at::Tensor y = place(plain.clone(), one, {Shard(1), Shard(0)});
    y.slice(0, 1, 5).zero_();
    plain.slice(0, 1, 5).zero_();
    EXPECT_TRUE(at::equal(DTensor(y).full_tensor(), plain));
  });
}

TEST(Concat, RefusesPlainTensorsOutsideOfGradients) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const at::Tensor x = place(numbers({5, 6}, 1), mesh, {Shard(0)});
    EXPECT_EQ(
        error_of([&] {
          at::cat({x, at::zeros({5, 6}, at::kDouble)});
        }),
        "[aten::cat] got mixed plain tensor and DTensor: argument \"tensors\" "
        "is a plain f64[5, 6] next to f64[5, 6] on (tp=2): S(0). Make it a "
        "DTensor with distribute_tensor or from_local, or call the operator on "
        "local tensors (to_local()). If the plain tensor is the same on every "
        "rank, implicit_replication() accepts it as replicated, and "
        "distribute_module distributes the tensors of a module.");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
