// SPDX-License-Identifier: BSD-3-Clause
// Convolutions with sharded spatial dimensions give the results of the plain
// operator, in the layout of the input. Ranks communicate only the rows that
// windows cover beyond a shard. Operands are sums of few powers of two, so
// results are exact.
#include <tests/ops/against_plain.h>
#include <tests/ops/oracle.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace against_plain;
using testing::Collectives;

/// A convolution of an input and a weight.
struct Convolution {
  at::Tensor input;
  at::Tensor weight;
  std::vector<int64_t> stride;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation;
  int64_t groups = 1;

  at::Tensor
  run(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) const {
    const std::vector<int64_t> none(stride.size(), 0);
    return at::convolution(
        x, w, bias, stride, padding, dilation, false, none, groups);
  }
  at::Tensor bias() const {
    return numbers({weight.size(0)}, 7);
  }
  std::string text() const {
    std::ostringstream out;
    out << "input " << input.sizes() << ", weight " << weight.sizes()
        << ", stride " << stride << ", padding " << padding << ", dilation "
        << dilation << ", groups " << groups;
    return out.str();
  }
};

std::string layout_of(const at::Tensor& t) {
  std::string text;
  for (const auto& p : DTensor(t).placements()) {
    text += (text.empty() ? "" : ", ") + to_string(p);
  }
  return text;
}

// Compares the result and all gradients with the plain operator's, for a
// gradient that arrives in the layout `arriving`. Returns the layouts of the
// result and the gradients.
std::vector<std::string> expect_as_plain(
    const Convolution& c,
    const DeviceMesh& mesh,
    const Placements& layout,
    const std::optional<Placements>& arriving = std::nullopt) {
  const auto run = [&](const TensorList& given, const at::Tensor& grad) {
    TensorList leaves;
    for (const auto& t : given) {
      leaves.push_back(leaf(t));
    }
    auto y = c.run(leaves[0], leaves[1], leaves[2]);
    auto results = torch::autograd::grad({y}, leaves, {grad});
    results.insert(results.begin(), y.detach());
    return results;
  };
  const TensorList whole{c.input, c.weight, c.bias()};
  const auto grad = numbers(c.run(whole[0], whole[1], whole[2]).sizes(), 9);
  const auto expected = run(whole, grad);
  const Placements replicated(layout.size(), Replicate());
  const auto got =
      run({place(c.input, mesh, layout),
           place(c.weight, mesh, replicated),
           place(c.bias(), mesh, replicated)},
          place(grad, mesh, arriving.value_or(layout)));
  std::vector<std::string> layouts;
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(same(DTensor(got[i]).full_tensor(), expected[i]))
        << c.text() << ": " << (i == 0 ? "result" : "gradient") << " " << i;
    layouts.push_back(layout_of(got[i]));
  }
  return layouts;
}

const std::vector<std::string> kKeepsHeight{"S(2)", "S(2)", "P(sum)", "P(sum)"};

TEST(ConvolutionInSpace, KeepsRowsSharded) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      for (const int64_t height : {8, 9, 11}) {
        const Convolution c{
            numbers({2, 3, height, 5}, 1),
            numbers({4, 3, 3, 3}, 2),
            {1, 1},
            {1, 1},
            {1, 1}};
        EXPECT_EQ(expect_as_plain(c, mesh, {Shard(2)}), kKeepsHeight);
        expect_as_plain(c, mesh, {Shard(2)}, Placements{Replicate()});
        expect_as_plain(c, mesh, {Shard(2)}, Placements{Shard(1)});
      }
    });
  }
}

// Each of the inner ranks sends its first and its last row, 2 x 3 x 5 numbers
// of 8 bytes. The gradient takes the same path in reverse.
TEST(ConvolutionInSpace, SendsTheRowsBesideAShardOnly) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {4});
    const Convolution c{
        numbers({2, 3, 16, 5}, 1),
        numbers({4, 3, 3, 3}, 2),
        {1, 1},
        {1, 1},
        {1, 1}};
    const auto x = leaf(place(c.input, mesh, {Shard(2)}));
    const auto w = leaf(place(c.weight, mesh, {Replicate()}));
    const auto row = 2 * 3 * 5 * 8;
    const bool is_inner = get_rank() == 1 || get_rank() == 2;
    const auto once = "all_to_all " + std::to_string(is_inner ? 2 * row : row);
    Collectives collectives;
    const auto y = c.run(x, w, {});
    EXPECT_EQ(collectives.take(), once);
    const auto grad = place(numbers(y.sizes(), 3), mesh, {Shard(2)});
    torch::autograd::grad({y}, {x}, {grad}, /*retain_graph=*/true);
    EXPECT_EQ(collectives.take(), once);
    torch::autograd::grad({y}, {x, w}, {grad});
    EXPECT_EQ(collectives.take(), once);
    at::conv2d(
        x.detach(), place(numbers({4, 3, 1, 1}, 5), mesh, {Replicate()}));
    EXPECT_EQ(collectives.take(), "");
  });
}

// Calls the backward operator itself, which gathers the rows of the input if
// the weight needs a gradient.
TEST(ConvolutionInSpace, HasABackwardOperator) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto x = numbers({2, 3, 8, 5}, 1);
    const auto w = numbers({4, 3, 3, 3}, 2);
    const auto grad = numbers({2, 4, 8, 5}, 3);
    const auto backward = [](const TensorList& in, std::array<bool, 3> mask) {
      const auto [input, weight, bias] = at::convolution_backward(
          in[0],
          in[1],
          in[2],
          at::OptionalIntArrayRef({4}),
          {1, 1},
          {1, 1},
          {1, 1},
          false,
          {0, 0},
          1,
          mask);
      return TensorList{input, weight, bias};
    };
    const TensorList shards{
        place(grad, mesh, {Shard(2)}),
        place(x, mesh, {Shard(2)}),
        place(w, mesh, {Replicate()})};
    const auto expected = backward({grad, x, w}, {true, true, true});
    const auto got = backward(shards, {true, true, true});
    const auto input_only = backward(shards, {true, false, false});
    EXPECT_EQ(layout_of(got[0]), "S(2)");
    EXPECT_EQ(layout_of(got[1]), "P(sum)");
    EXPECT_EQ(layout_of(got[2]), "P(sum)");
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(same(DTensor(got[i]).full_tensor(), expected[i])) << i;
    }
    EXPECT_TRUE(same(DTensor(input_only[0]).full_tensor(), expected[0]));
    EXPECT_FALSE(input_only[1].defined());
  });
}

// Calls `check` with many convolutions along one dimension.
void for_many(const std::function<void(const Convolution&)>& check) {
  for (const int64_t kernel : {1, 2, 3, 5}) {
    for (const int64_t stride : {1, 2, 3}) {
      for (const int64_t padding : {0, 1, 3}) {
        for (const int64_t dilation : {1, 2}) {
          for (const int64_t size : {2, 4, 5, 7, 12}) {
            if (dilation * (kernel - 1) + 1 <= size + 2 * padding) {
              check(
                  {numbers({2, 2, size}, 1),
                   numbers({3, 2, kernel}, 2),
                   {stride},
                   {padding},
                   {dilation}});
            }
          }
        }
      }
    }
  }
}

// Some shards are empty, and some kernels are wider than a shard.
TEST(ConvolutionInSpace, TakesAllSizesAndKernels) {
  for (const int64_t ranks : {2, 3, 5}) {
    int kept = 0;
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      int kept_here = 0;
      for_many([&](const Convolution& c) {
        kept_here += expect_as_plain(c, mesh, {Shard(2)}) == kKeepsHeight;
      });
      if (get_rank() == 0) {
        kept = kept_here;
      }
    });
    EXPECT_GT(kept, 100) << ranks;
  }
}

TEST(ConvolutionInSpace, OverTwoDimensionsOfSpace) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const Convolution c{
        numbers({3, 2, 7, 9}, 1),
        numbers({3, 2, 3, 5}, 2),
        {2, 1},
        {1, 2},
        {1, 1}};
    const std::vector<std::string> sums{"P(sum), P(sum)", "P(sum), P(sum)"};
    const auto expect = [&](const Placements& layout, const std::string& text) {
      EXPECT_EQ(
          expect_as_plain(c, mesh, layout),
          (std::vector<std::string>{text, text, sums[0], sums[1]}));
    };
    expect({Shard(2), Shard(3)}, "S(2), S(3)");
    expect({Shard(3), Shard(2)}, "S(3), S(2)");
    expect({Shard(0), Shard(2)}, "S(0), S(2)");
    expect({Shard(3), Shard(0)}, "S(3), S(0)");
    expect_as_plain(c, mesh, {Shard(2), Shard(2)});
  });
}

TEST(ConvolutionInSpace, WithGroupsAndInThreeDimensions) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    EXPECT_EQ(
        expect_as_plain(
            {numbers({2, 4, 8, 3}, 1),
             numbers({8, 1, 3, 3}, 2),
             {1, 1},
             {1, 1},
             {1, 1},
             4},
            mesh,
            {Shard(2)}),
        kKeepsHeight);
    EXPECT_EQ(
        expect_as_plain(
            {numbers({1, 2, 7, 4, 3}, 1),
             numbers({3, 2, 2, 3, 3}, 2),
             {1, 2, 1},
             {1, 1, 1},
             {2, 1, 1}},
            mesh,
            {Shard(2)}),
        kKeepsHeight);
  });
}

// Channels are sharded by one mesh dimension, and a spatial dimension by the
// other.
TEST(ConvolutionInSpace, BesideShardedChannels) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const auto x = numbers({2, 4, 6, 5}, 1);
    const auto w = numbers({6, 4, 3, 3}, 2);
    const auto expected = at::conv2d(x, w, {}, 1, 1);
    const auto expect = [&](const Placements& input,
                            const Placements& weight,
                            const std::string& layout) {
      const auto y =
          at::conv2d(place(x, mesh, input), place(w, mesh, weight), {}, 1, 1);
      EXPECT_EQ(layout_of(y), layout);
      EXPECT_TRUE(same(DTensor(y).full_tensor(), expected)) << layout;
    };
    expect({Replicate(), Shard(2)}, {Shard(0), Replicate()}, "S(1), S(2)");
    expect({Shard(2), Shard(1)}, {Replicate(), Shard(1)}, "S(2), P(sum)");
  });
}

TEST(ConvolutionInSpace, IsTwiceDifferentiable) {
  const auto x = numbers({2, 2, 8, 4}, 1);
  const auto w = numbers({3, 2, 3, 3}, 2);
  const auto second_order = [](const at::Tensor& input,
                               const at::Tensor& weight) {
    const TensorList leaves{leaf(input), leaf(weight)};
    const auto y = at::conv2d(leaves[0], leaves[1], {}, 1, 1);
    const auto first = torch::autograd::grad(
        {y.pow(2).sum()}, leaves, {}, true, /*create_graph=*/true);
    return torch::autograd::grad(
        {first[0].pow(2).sum() + first[1].pow(2).sum()}, leaves);
  };
  const auto truth = second_order(x, w);
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      const auto got = second_order(
          place(x, mesh, {Shard(2)}), place(w, mesh, {Replicate()}));
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(
            at::allclose(DTensor(got[i]).full_tensor(), truth[i], 1e-12))
            << "operand " << i;
      }
    });
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
