// SPDX-License-Identifier: BSD-3-Clause
// Convolutions of large shards of rows without gradients. Operands are sums of
// few powers of two, so results are exact.
#include <dtensor/ops/kernels/convolution_edges_impl.h>
#include <tests/ops/against_plain.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace against_plain;

// The halo of a convolution of images of this height on two ranks.
detail::Halo halo_of(
    const DeviceMesh& mesh,
    const detail::KernelWindow& window,
    int64_t height,
    int64_t width) {
  const auto input =
      Spec::make(mesh, {Shard(2)}, {1, 2, height, width}, at::kDouble);
  const auto result = Spec::make(
      mesh, {Shard(2)}, {1, 2, window.count(height), width}, at::kDouble);
  return detail::make_halo(input, 0, window, *result);
}

// A rank convolves a large shard without a copy and computes the edge rows
// again, if windows begin at the same distance from its rows as on one rank.
TEST(ConvolutionEdges, AreTheRowsWhoseWindowsCoverOtherShards) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto edges_of = [&](const detail::KernelWindow& window,
                              int64_t height,
                              int64_t width = 512) {
      const auto edges =
          detail::edge_rows(halo_of(mesh, window, height, width));
      return edges ? std::pair(edges->first, edges->last)
                   : std::pair<int64_t, int64_t>(-1, -1);
    };
    using Edges = std::pair<int64_t, int64_t>;
    const bool is_first = get_rank() == 0;
    EXPECT_EQ(
        edges_of({3, 1, 1, 1}, 300), is_first ? Edges(0, 1) : Edges(1, 0));
    EXPECT_EQ(
        edges_of({5, 1, 4, 2}, 300), is_first ? Edges(0, 4) : Edges(4, 0));
    EXPECT_EQ(
        edges_of({3, 2, 1, 1}, 300), is_first ? Edges(0, 0) : Edges(1, 0));
    const Edges none(-1, -1);
    EXPECT_EQ(edges_of({3, 1, 1, 1}, 8), none) << "a small shard";
    EXPECT_EQ(edges_of({3, 2, 1, 1}, 302), none) << "windows at odd rows";
    EXPECT_EQ(edges_of({3, 1, 0, 1}, 300), none) << "fewer rows than windows";
    EXPECT_EQ(edges_of({101, 1, 50, 1}, 128, 2048), none) << "mostly edges";
    EXPECT_EQ(edges_of({1, 1, 0, 1}, 300), none) << "no row of another rank";
  });
}

struct Case {
  std::vector<int64_t> input, weight;
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
};

// Compares the result of operands in these layouts with the plain operator's.
void expect_as_plain(
    const Case& c,
    const DeviceMesh& mesh,
    const Placements& input,
    const Placements& weight,
    at::MemoryFormat order = at::MemoryFormat::Contiguous) {
  const at::NoGradGuard no_grad;
  const auto x = numbers(c.input, 1).contiguous(order);
  const auto w = numbers(c.weight, 2);
  const auto bias = numbers({c.weight[0]}, 3);
  const std::vector<int64_t> none(c.stride.size(), 0);
  const auto run = [&](const TensorList& t) {
    return at::convolution(
        t[0],
        t[1],
        t[2],
        c.stride,
        c.padding,
        c.dilation,
        false,
        none,
        c.groups);
  };
  Placements of_bias;
  for (const Placement& p : weight) {
    of_bias.push_back(p == Shard(0) ? p : Placement(Replicate()));
  }
  const auto got = run(
      {place(x, mesh, input),
       place(w, mesh, weight),
       place(bias, mesh, of_bias)});
  EXPECT_TRUE(same(DTensor(got).full_tensor(), run({x, w, bias})))
      << at::IntArrayRef(c.input) << " " << at::IntArrayRef(c.weight);
  EXPECT_TRUE(to_local(got).is_contiguous());
}

const Case kImage{{1, 2, 300, 512}, {2, 2, 3, 3}, {1, 1}, {1, 1}, {1, 1}};

TEST(ConvolutionEdges, AreComputedAgain) {
  const std::vector<Case> cases{
      kImage,
      {{1, 2, 301, 512}, {2, 2, 3, 3}, {1, 1}, {1, 0}, {1, 1}},
      {{1, 2, 300, 512}, {2, 1, 5, 3}, {1, 2}, {4, 1}, {2, 1}, 2},
      {{1, 2, 300, 512}, {2, 2, 3, 3}, {2, 2}, {1, 1}, {1, 1}},
      {{2, 2, 300, 256}, {3, 2, 4, 2}, {2, 1}, {1, 1}, {1, 1}},
      {{1, 1, 300, 512}, {1, 1, 2, 1}, {1, 1}, {0, 0}, {1, 1}},
      {{1, 1, 400000}, {2, 1, 7}, {1}, {3}, {1}},
      {{1, 1, 64, 64, 128}, {1, 1, 3, 3, 3}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}}};
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      for (const Case& c : cases) {
        expect_as_plain(c, mesh, {Shard(2)}, {Replicate()});
      }
    });
  }
}

TEST(ConvolutionEdges, OfChannelsLast) {
  run_ranks(2, [] {
    expect_as_plain(
        kImage,
        init_device_mesh(at::kCPU, {2}),
        {Shard(2)},
        {Replicate()},
        at::MemoryFormat::ChannelsLast);
  });
}

// With one channel over two ranks, a rank has no channels.
TEST(ConvolutionEdges, BesideShardedSamplesAndChannels) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const Case one_in{{2, 1, 300, 512}, {2, 1, 3, 3}, {1, 1}, {1, 1}, {1, 1}};
    const Case one_out{{2, 2, 300, 512}, {1, 2, 3, 3}, {1, 1}, {1, 1}, {1, 1}};
    for (const Case& c : {kImage, one_in, one_out}) {
      expect_as_plain(
          c, mesh, {Shard(0), Shard(2)}, {Replicate(), Replicate()});
      expect_as_plain(c, mesh, {Shard(1), Shard(2)}, {Shard(1), Replicate()});
      expect_as_plain(
          c, mesh, {Replicate(), Shard(2)}, {Shard(0), Replicate()});
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
