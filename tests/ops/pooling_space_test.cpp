// SPDX-License-Identifier: BSD-3-Clause
// Pooling with sharded spatial dimensions gives the values, global indices and
// gradients of the plain operator, in the layout of the input.
#include <tests/ops/against_plain.h>
#include <tests/ops/oracle.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace against_plain;

/// Geometry of pooling along height and width.
struct Pool {
  std::vector<int64_t> kernel;
  std::vector<int64_t> stride;
  std::vector<int64_t> padding;
  std::vector<int64_t> dilation = {1, 1};
  bool ceil_mode = false;
};

TensorList maximum(const Pool& p, const at::Tensor& x) {
  const auto [values, indices] = at::max_pool2d_with_indices(
      x, p.kernel, p.stride, p.padding, p.dilation, p.ceil_mode);
  return {values, indices};
}

// A divisor of the number of elements in a window, padding not counted.
TensorList average(const Pool& p, const at::Tensor& x) {
  return {
      at::avg_pool2d(x, p.kernel, p.stride, p.padding, p.ceil_mode, true),
      at::avg_pool2d(x, p.kernel, p.stride, p.padding, p.ceil_mode, false)};
}

using Pooling = TensorList (*)(const Pool&, const at::Tensor&);

// Compares the results and the gradient of the input with the plain operator's.
// Returns true if the result has the layout of the input.
bool expect_as_plain(
    Pooling pooling,
    const Pool& p,
    const at::Tensor& whole,
    const DeviceMesh& mesh,
    const Placements& layout) {
  const auto run = [&](const at::Tensor& given) {
    const auto x = leaf(given);
    auto results = pooling(p, x);
    at::Tensor loss = (results[0] * results[0]).sum();
    if (results[1].is_floating_point()) {
      loss = loss + results[1].pow(3).sum();
    }
    results.push_back(torch::autograd::grad({loss}, {x})[0]);
    return results;
  };
  const auto expected = run(whole);
  const auto got = run(place(whole, mesh, layout));
  for (size_t i = 0; i < got.size(); ++i) {
    const auto full = DTensor(got[i].detach()).full_tensor();
    EXPECT_TRUE(
        full.sizes() == expected[i].sizes() &&
        at::allclose(full, expected[i].detach(), 1e-12, 1e-12))
        << "result " << i << " of kernel " << p.kernel << ", stride "
        << p.stride << ", padding " << p.padding << ", dilation " << p.dilation
        << (p.ceil_mode ? ", ceil mode" : "") << " on " << whole.sizes();
  }
  return DTensor(got[0].detach()).placements() == PlacementsRef(layout);
}

// Calls `check` with many poolings.
void for_many(const std::function<void(const Pool&, int64_t height)>& check) {
  for (const int64_t kernel : {1, 2, 3, 5}) {
    for (const int64_t stride : {1, 2, 3}) {
      for (int64_t padding = 0; padding <= kernel / 2; ++padding) {
        for (const bool ceil_mode : {false, true}) {
          for (const int64_t height : {4, 5, 7, 12}) {
            if (kernel <= height + 2 * padding) {
              check(
                  {{kernel, 2}, {stride, 1}, {padding, 1}, {1, 1}, ceil_mode},
                  height);
            }
          }
        }
      }
    }
  }
}

void expect_many_as_plain(Pooling pooling) {
  for (const int64_t ranks : {1, 2, 3}) {
    int kept = 0;
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      int kept_here = 0;
      for_many([&](const Pool& p, int64_t height) {
        kept_here += expect_as_plain(
            pooling, p, numbers({2, 2, height, 5}, 3), mesh, {Shard(2)});
      });
      if (get_rank() == 0) {
        kept = kept_here;
      }
    });
    EXPECT_GT(kept, 60) << ranks;
  }
}

TEST(PoolingInSpace, MaximumOfAllSizes) {
  expect_many_as_plain(maximum);
}

TEST(PoolingInSpace, AverageOfAllSizes) {
  expect_many_as_plain(average);
}

TEST(PoolingInSpace, OverTwoDimensionsOfSpace) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const auto x = numbers({3, 2, 8, 9}, 5);
    const Pool wide{{3, 3}, {2, 2}, {1, 1}};
    const Pool dilated{{2, 3}, {1, 1}, {1, 0}, {2, 1}};
    for (const Placements& layout : std::vector<Placements>{
             {Shard(2), Shard(3)},
             {Shard(3), Shard(2)},
             {Shard(0), Shard(2)},
             {Shard(3), Shard(1)}}) {
      EXPECT_TRUE(expect_as_plain(maximum, wide, x, mesh, layout));
      EXPECT_TRUE(expect_as_plain(average, wide, x, mesh, layout));
      EXPECT_TRUE(expect_as_plain(maximum, dilated, x, mesh, layout));
    }
    EXPECT_TRUE(
        expect_as_plain(maximum, wide, x[0], mesh, {Shard(1), Shard(2)}));
  });
}

// Without gradients and along one or three dimensions.
TEST(PoolingInSpace, InOneAndThreeDimensions) {
  run_ranks(3, [] {
    const at::NoGradGuard no_gradients;
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto line = numbers({2, 3, 10}, 1);
    const auto volume = numbers({2, 2, 9, 4, 5}, 2);
    const auto expect = [&](const at::Tensor& got, const at::Tensor& plain) {
      EXPECT_EQ(DTensor(got).placements()[0], Shard(2));
      EXPECT_TRUE(same(DTensor(got).full_tensor(), plain));
    };
    const auto on_line = [](const at::Tensor& x) {
      return at::max_pool1d(x, {3}, {2}, {1}, {1}, true);
    };
    expect(on_line(place(line, mesh, {Shard(2)})), on_line(line));
    const auto in_volume = [](const at::Tensor& x) {
      return at::max_pool3d_with_indices(
          x, {3, 2, 2}, {2, 1, 1}, {1, 1, 0}, {1, 1, 2});
    };
    const auto [values, indices] = in_volume(volume);
    const auto got = in_volume(place(volume, mesh, {Shard(2)}));
    expect(std::get<0>(got), values);
    expect(std::get<1>(got), indices);
    const auto mean = [](const at::Tensor& x) {
      return at::avg_pool3d(x, {2, 2, 2}, {1, 1, 1});
    };
    expect(mean(place(volume, mesh, {Shard(2)})), mean(volume));
    // LibTorch needs as many rows as the kernel, which rank 0 would not have.
    const auto tall = [](const at::Tensor& x) {
      return at::avg_pool3d(x, {6, 2, 2}, {2, 1, 1}, {3, 0, 0});
    };
    EXPECT_TRUE(at::allclose(
        DTensor(tall(place(volume, mesh, {Shard(2)}))).full_tensor(),
        tall(volume)));
  });
}

// Windows that do not overlap need no rows of other ranks.
TEST(PoolingInSpace, SendsTheReachedRowsOnly) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(numbers({2, 3, 8, 5}, 1), mesh, {Shard(2)});
    testing::Collectives collectives;
    at::max_pool2d(x, {2, 2});
    EXPECT_EQ(collectives.take(), "");
    at::max_pool2d(x, {3, 3}, {1, 1}, {1, 1});
    EXPECT_EQ(
        collectives.take(), "all_to_all " + std::to_string(2 * 3 * 5 * 8));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
