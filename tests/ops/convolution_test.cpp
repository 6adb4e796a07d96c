// SPDX-License-Identifier: BSD-3-Clause
// Convolutions in all combinations of layouts. Operands are sums of few powers
// of two, so results are exact.
#include <tests/ops/against_plain.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace against_plain;

using Ints = std::vector<int64_t>;

OpCase convolution_case(
    std::string name,
    TensorList inputs,
    std::function<at::Tensor(
        const at::Tensor&,
        const at::Tensor&,
        const std::optional<at::Tensor>&)> fn) {
  return {
      std::move(name), std::move(inputs), [fn](const TensorList& in) {
        return TensorList{fn(
            in[0], in[1], in.size() > 2 ? std::optional(in[2]) : std::nullopt)};
      }};
}

TEST(Convolution, OneGroup) {
  check_cases(
      {convolution_case(
           "conv2d with bias",
           {numbers({3, 4, 5, 6}, 1),
            numbers({5, 4, 3, 2}, 2),
            numbers({5}, 3)},
           [](const auto& x, const auto& w, const auto& b) {
             return at::conv2d(x, w, b, {2, 1}, {1, 0}, {1, 2});
           }),
       convolution_case(
           "conv1d without bias",
           {numbers({2, 3, 7}, 1), numbers({4, 3, 3}, 2)},
           [](const auto& x, const auto& w, const auto& b) {
             return at::conv1d(x, w, b, 1, "same");
           })});
}

TEST(Convolution, Groups) {
  check_cases(
      {convolution_case(
           "depthwise conv2d",
           {numbers({2, 5, 4, 4}, 1), numbers({10, 1, 3, 3}, 2)},
           [](const auto& x, const auto& w, const auto& b) {
             return at::conv2d(x, w, b, {1, 1}, {1, 1}, {1, 1}, 5);
           }),
       convolution_case(
           "conv1d of three groups",
           {numbers({2, 6, 5}, 1), numbers({9, 2, 3}, 2)},
           [](const auto& x, const auto& w, const auto& b) {
             return at::conv1d(x, w, b, {1}, {1}, {1}, 3);
           })});
}

TEST(Convolution, Transposed) {
  check_cases(
      {convolution_case(
           "conv_transpose2d",
           {numbers({3, 2, 3, 2}, 1), numbers({2, 3, 3, 2}, 2)},
           [](const auto& x, const auto& w, const auto& b) {
             return at::conv_transpose2d(
                 x, w, b, {2, 1}, {1, 0}, {1, 0}, 1, {1, 2});
           }),
       convolution_case(
           "conv_transpose1d of two groups",
           {numbers({2, 4, 5}, 1), numbers({4, 3, 3}, 2)},
           [](const auto& x, const auto& w, const auto& b) {
             return at::conv_transpose1d(x, w, b, {2}, {1}, {1}, 2);
           })});
}

TEST(Convolution, ThreeDimensionsOfSpace) {
  check_cases({convolution_case(
      "conv3d",
      {numbers({2, 2, 3, 4, 3}, 1), numbers({3, 2, 2, 2, 2}, 2)},
      [](const auto& x, const auto& w, const auto& b) {
        return at::conv3d(x, w, b, 1, 1);
      })});
}

// Samples and channels stay sharded without communication.
TEST(Convolution, KeepsLayoutsWithoutCommunication) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = numbers({4, 6, 5, 5}, 1);
    const auto w = numbers({8, 6, 3, 3}, 2);
    const auto grouped = numbers({8, 3, 3, 3}, 3);
    const auto expect = [&](const at::Tensor& input,
                            const Placement& input_layout,
                            const at::Tensor& weight,
                            const Placement& weight_layout,
                            int64_t groups,
                            const Placement& output_layout) {
      const auto in = place(input, mesh, {input_layout});
      const auto kernel = place(weight, mesh, {weight_layout});
      const CountCollectives collectives;
      const auto y = at::conv2d(
          in,
          kernel,
          {},
          at::IntArrayRef({1, 1}),
          at::IntArrayRef({0, 0}),
          at::IntArrayRef({1, 1}),
          groups);
      EXPECT_EQ(collectives.count(), 0);
      EXPECT_EQ(DTensor(y).placements(), Placements{output_layout});
    };
    const auto sum = Partial(ReduceOp::kSum);
    expect(x, Shard(0), w, Replicate(), 1, Shard(0));
    expect(x, Replicate(), w, Shard(0), 1, Shard(1));
    expect(x, Shard(1), w, Shard(1), 1, sum);
    expect(x, Shard(1), grouped, Shard(0), 2, Shard(1));
    expect(x, sum, w, Replicate(), 1, sum);
  });
}

TEST(Convolution, IsTwiceDifferentiable) {
  const auto x = numbers({4, 2, 4, 4}, 1);
  const auto w = numbers({3, 2, 3, 3}, 2);
  const auto second_order = [](const at::Tensor& input,
                               const at::Tensor& weight) {
    const TensorList leaves{leaf(input), leaf(weight)};
    const auto y = at::conv2d(leaves[0], leaves[1]);
    const auto first = torch::autograd::grad(
        {y.pow(2).sum()}, {leaves[0]}, {}, true, /*create_graph=*/true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, leaves);
  };
  const auto truth = second_order(x, w);
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const std::vector<std::pair<Placement, Placement>> layouts{
        {Shard(0), Replicate()}, {Replicate(), Shard(0)}, {Shard(1), Shard(1)}};
    for (const auto& [input, weight] : layouts) {
      const auto got =
          second_order(place(x, mesh, {input}), place(w, mesh, {weight}));
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_TRUE(same(DTensor(got[i]).full_tensor(), truth[i]))
            << to_string(input) << ", operand " << i;
      }
    }
  });
}

TEST(Convolution, ErrorsNameTheOperands) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(numbers({2, 3, 5, 5}, 1), mesh, {Shard(0)});
    const auto of = [&](at::IntArrayRef sizes) {
      return place(numbers(sizes, 2), mesh, {Replicate()});
    };
    EXPECT_EQ(
        error_of([&] {
          at::conv2d(x, of({4, 2, 3, 3}));
        }),
        "[aten::convolution] an input of f64[2, 3, 5, 5] on (2): S(0) does not "
        "fit a weight of f64[4, 2, 3, 3] on (2): R in 1 group. Pass (samples, "
        "channels, space...) with the weight's number of input channels.");
    EXPECT_EQ(
        error_of([&] {
          at::conv2d(x, of({4, 3, 7, 3}));
        }),
        "[aten::convolution] a kernel of 7 with padding 0 and stride 1 does "
        "not fit dimension 2 of f64[2, 3, 5, 5] on (2): S(0). Use a smaller "
        "kernel or more padding.");
    const auto rows = place(numbers({2, 3, 5, 5}, 1), mesh, {Shard(2)});
    const auto error_with = [&](int64_t padding, int64_t dilation) {
      const std::vector<int64_t> paddings{padding, padding};
      return error_of([&] {
        at::conv2d(rows, of({4, 3, 3, 3}), {}, 1, paddings, dilation);
      });
    };
    EXPECT_EQ(
        error_with(0, -1),
        "[aten::convolution] got stride 1, dilation -1 and padding 0. Pass a "
        "positive stride and dilation, and a padding of at least 0.");
    EXPECT_EQ(
        error_with(-1, 1),
        "[aten::convolution] got stride 1, dilation 1 and padding -1. Pass a "
        "positive stride and dilation, and a padding of at least 0.");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
