// SPDX-License-Identifier: BSD-3-Clause
// Pooling, upsampling, padding and similar operators in all layouts.
#include <tests/ops/against_plain.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace against_plain;

const at::Tensor kPicture = numbers({3, 4, 6, 4}, 1);
const at::Tensor kVolume = numbers({3, 2, 4, 4, 6}, 2);
const at::Tensor kLine = numbers({3, 4, 8}, 3);

TEST(Pooling, Average) {
  check_cases(
      {unary(
           "avg_pool1d",
           kLine,
           [](const auto& x) { return at::avg_pool1d(x, {2}); }),
       unary(
           "avg_pool2d",
           kPicture,
           [](const auto& x) {
             return at::avg_pool2d(x, {2, 2}, {1, 2});
           }),
       unary(
           "avg_pool2d of channels without samples",
           kLine,
           [](const auto& x) {
             return at::avg_pool2d(x, {2, 2});
           }),
       unary(
           "avg_pool3d",
           kVolume,
           [](const auto& x) {
             return at::avg_pool3d(x, {2, 2, 2});
           }),
       unary(
           "adaptive_avg_pool1d",
           kLine,
           [](const auto& x) { return at::adaptive_avg_pool1d(x, {4}); }),
       unary(
           "adaptive_avg_pool2d",
           kPicture,
           [](const auto& x) {
             return at::adaptive_avg_pool2d(x, {3, 2});
           }),
       unary("adaptive_avg_pool3d", kVolume, [](const auto& x) {
         return at::adaptive_avg_pool3d(x, {2, 2, 3});
       })});
}

TEST(Pooling, Maximum) {
  const auto values = [](const auto& pair) {
    return TensorList{std::get<0>(pair)};
  };
  check_cases(
      {unary(
           "max_pool1d",
           kLine,
           [](const auto& x) { return at::max_pool1d(x, {3}, {2}, {1}); }),
       {"max_pool1d without gradients",
        {kLine},
        [](const TensorList& in) {
          const at::NoGradGuard no_gradients;
          return TensorList{at::max_pool1d(in[0], {3}, {2}, {1}, {1}, true)};
        },
        /*first_replicated=*/99,
        /*differentiable=*/false},
       unary(
           "max_pool2d",
           kPicture,
           [](const auto& x) {
             return at::max_pool2d(x, {2, 3}, {2, 1});
           }),
       unary(
           "max_pool3d",
           kVolume,
           [](const auto& x) {
             return at::max_pool3d(x, {2, 3, 2}, {2, 2, 3}, {1, 0, 1}, 1, true);
           }),
       {"adaptive_max_pool1d",
        {kLine},
        [&](const TensorList& in) {
          return values(at::adaptive_max_pool1d(in[0], {3}));
        }},
       {"adaptive_max_pool2d",
        {kPicture},
        [&](const TensorList& in) {
          return values(at::adaptive_max_pool2d(in[0], {3, 2}));
        }},
       {"adaptive_max_pool3d", {kVolume}, [&](const TensorList& in) {
          return values(at::adaptive_max_pool3d(in[0], {2, 2, 3}));
        }}});
}

TEST(Pooling, FractionalMaximum) {
  auto generator = at::detail::createCPUGenerator(4);
  const OpCase pool{
      "fractional_max_pool2d",
      {kPicture, at::rand({3, 4, 2}, generator, at::kDouble)},
      [](const TensorList& in) {
        return TensorList{std::get<0>(
            at::fractional_max_pool2d(in[0], {2, 2}, {3, 2}, in[1].detach()))};
      }};
  check_cases({pool});
}

TEST(Pooling, MaximumAndIndicesCanBeUndone) {
  check_cases(
      {{"max_unpool2d",
        {kPicture},
        [](const TensorList& in) {
          const auto [y, indices] = at::max_pool2d_with_indices(in[0], {2, 2});
          return TensorList{at::max_unpool2d(y * 2, indices, {6, 4})};
        }},
       {"max_unpool3d", {kVolume}, [](const TensorList& in) {
          const auto [y, indices] =
              at::max_pool3d_with_indices(in[0], {2, 2, 2});
          return TensorList{at::max_unpool3d(
              y * 2, indices, {4, 4, 6}, {2, 2, 2}, {0, 0, 0})};
        }}});
}

TEST(Upsampling, Nearest) {
  check_cases(
      {unary(
           "upsample_nearest1d",
           kLine,
           [](const auto& x) { return at::upsample_nearest1d(x, {16}); }),
       unary(
           "_upsample_nearest_exact2d",
           kPicture,
           [](const auto& x) {
             return at::_upsample_nearest_exact2d(x, {9, 8});
           }),
       unary("upsample_nearest3d", kVolume, [](const auto& x) {
         return at::upsample_nearest3d(x, {8, 4, 9});
       })});
}

// Factors of two interpolate by quarters, which are exact.
TEST(Upsampling, Linear) {
  check_cases(
      {unary(
           "upsample_linear1d",
           kLine,
           [](const auto& x) { return at::upsample_linear1d(x, {16}, false); }),
       unary(
           "upsample_bilinear2d",
           kPicture,
           [](const auto& x) {
             return at::upsample_bilinear2d(x, {12, 8}, false);
           }),
       unary(
           "_upsample_bilinear2d_aa",
           kPicture,
           [](const auto& x) {
             return at::_upsample_bilinear2d_aa(x, {12, 8}, false);
           }),
       unary("upsample_trilinear3d", kVolume, [](const auto& x) {
         return at::upsample_trilinear3d(x, {8, 8, 12}, false);
       })});
}

TEST(Padding, Reflection) {
  check_cases(
      {unary(
           "reflection_pad1d",
           kLine,
           [](const auto& x) {
             return at::reflection_pad1d(x, {3, 1});
           }),
       unary(
           "reflection_pad2d",
           kPicture,
           [](const auto& x) {
             return at::reflection_pad2d(x, {1, 2, 3, 1});
           }),
       unary("reflection_pad3d", kVolume, [](const auto& x) {
         return at::reflection_pad3d(x, {1, 2, 1, 1, 2, 1});
       })});
}

TEST(Padding, Replication) {
  check_cases(
      {unary(
           "replication_pad1d",
           kLine,
           [](const auto& x) {
             return at::replication_pad1d(x, {3, 1});
           }),
       unary(
           "replication_pad2d",
           kPicture,
           [](const auto& x) {
             return at::replication_pad2d(x, {1, 2, 3, 1});
           }),
       unary("replication_pad3d", kVolume, [](const auto& x) {
         return at::replication_pad3d(x, {1, 2, 1, 1, 2, 1});
       })});
}

TEST(SpaceToChannels, UnfoldAndFold) {
  check_cases(
      {unary(
           "im2col",
           kPicture,
           [](const auto& x) {
             return at::im2col(x, {2, 3}, {1, 1}, {1, 0}, {2, 1});
           }),
       unary(
           "im2col without samples",
           kLine,
           [](const auto& x) {
             return at::im2col(x.unsqueeze(1), {1, 3}, {1, 1}, {0, 0}, {1, 1});
           }),
       unary("col2im", numbers({3, 16, 15}, 4), [](const auto& x) {
         return at::col2im(x, {6, 4}, {2, 2}, {1, 1}, {0, 0}, {1, 1});
       })});
}

TEST(SpaceToChannels, PixelShuffle) {
  check_cases(
      {unary(
           "pixel_shuffle",
           numbers({3, 12, 2, 3}, 5),
           [](const auto& x) { return at::pixel_shuffle(x, 2); }),
       unary(
           "pixel_unshuffle",
           kPicture,
           [](const auto& x) { return at::pixel_unshuffle(x, 2); }),
       {"pixel_unshuffle of an empty picture, without gradients as in LibTorch",
        {numbers({2, 4, 0}, 6)},
        [](const TensorList& in) {
          return TensorList{at::pixel_unshuffle(in[0], 2)};
        },
        1,
        /*differentiable=*/false},
       unary("channel_shuffle", kPicture, [](const auto& x) {
         return at::channel_shuffle(x, 2);
       })});
}

// The grid refers to centers of pixels and to points between two centers.
TEST(GridSampler, TwoAndThreeDimensions) {
  const auto grid = [](at::IntArrayRef sizes, uint64_t seed) {
    auto generator = at::detail::createCPUGenerator(seed);
    return at::randint(-4, 5, sizes, generator, at::kDouble) / 4;
  };
  check_cases(
      {{"grid_sampler of a picture",
        {numbers({3, 2, 4, 8}, 1), grid({3, 2, 5, 2}, 2)},
        [](const TensorList& in) {
          return TensorList{at::grid_sampler(in[0], in[1], 0, 0, false)};
        }},
       {"grid_sampler of a volume",
        {numbers({2, 2, 4, 2, 4}, 1), grid({2, 2, 1, 3, 3}, 2)},
        [](const TensorList& in) {
          return TensorList{at::grid_sampler(in[0], in[1], 0, 1, false)};
        }}});
}

} // namespace TEST_SOURCE
} // namespace dtensor
