// SPDX-License-Identifier: BSD-3-Clause
// Upsampling, padding and transposed convolutions with sharded spatial
// dimensions give the results and gradients of the plain operator, with less
// communication than gathering. Operands are sums of few powers of two.
#include <tests/ops/against_plain.h>
#include <tests/ops/oracle.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace against_plain;
using testing::Collectives;

using PictureFn = std::function<at::Tensor(const at::Tensor&)>;

std::string layout_of(const at::Tensor& t) {
  std::string text;
  for (const auto& p : DTensor(t).placements()) {
    text += (text.empty() ? "" : ", ") + to_string(p);
  }
  return text;
}

// Compares the result and the gradient with the plain operator's. Returns the
// layout of the result.
std::string expect_as_plain(
    const std::string& name,
    const at::Tensor& picture,
    const DeviceMesh& mesh,
    const Placements& layout,
    const PictureFn& fn) {
  const auto run = [&](const at::Tensor& x, const auto& placed) {
    const auto input = leaf(x);
    const auto y = fn(input);
    const auto grad = placed(numbers(y.sizes(), 9));
    return std::make_pair(
        y.detach(), torch::autograd::grad({y}, {input}, {grad})[0]);
  };
  const auto truth = run(picture, [](const at::Tensor& t) { return t; });
  const auto got =
      run(place(picture, mesh, layout), [&](const at::Tensor& t) -> at::Tensor {
        return place(t, mesh, layout);
      });
  EXPECT_TRUE(
      at::allclose(DTensor(got.first).full_tensor(), truth.first, 1e-12, 1e-12))
      << name;
  EXPECT_TRUE(at::allclose(
      DTensor(got.second).full_tensor(), truth.second, 1e-12, 1e-12))
      << name << ": gradient";
  return layout_of(got.first);
}

// Calls `check` with images of several heights on several numbers of ranks.
void on_heights(
    const std::vector<int64_t>& heights,
    const std::function<void(const at::Tensor&, const DeviceMesh&)>& check) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      for (const int64_t height : heights) {
        check(numbers({2, 3, height, 5}, 1), mesh);
      }
    });
  }
}

TEST(UpsamplingInSpace, KeepsRowsSharded) {
  const std::vector<std::pair<std::string, PictureFn>> ways{
      {"nearest",
       [](const auto& x) {
         return at::upsample_nearest2d(x, {x.size(2) * 2, x.size(3) * 3});
       }},
      {"exact nearest",
       [](const auto& x) {
         return at::_upsample_nearest_exact2d(x, {x.size(2) * 3, x.size(3)});
       }},
      {"bilinear",
       [](const auto& x) {
         return at::upsample_bilinear2d(
             x, {x.size(2) * 2, x.size(3) * 2}, false);
       }},
      {"bilinear by a factor",
       [](const auto& x) {
         return at::upsample_bilinear2d(
             x, {x.size(2) * 4, x.size(3) * 2}, false, 4.0, 2.0);
       }},
      {"bicubic", [](const auto& x) {
         return at::upsample_bicubic2d(
             x, {x.size(2) * 2, x.size(3) * 2}, false);
       }}};
  for (const auto& way : ways) {
    const auto& name = way.first;
    const auto& fn = way.second;
    on_heights({4, 8, 9, 11}, [&](const auto& x, const auto& mesh) {
      const auto layout = expect_as_plain(name, x, mesh, {Shard(2)}, fn);
      // Gathering four rows on four ranks moves less than a bicubic halo.
      if (name != "bicubic" || x.size(2) > 4) {
        EXPECT_EQ(layout.substr(0, 3), "S(2") << name << " " << x.sizes();
      }
    });
  }
}

// Corners that are aligned, or sizes that do not grow by a whole number.
TEST(UpsamplingInSpace, GathersIfPositionsDependOnTheSize) {
  const std::vector<std::pair<std::string, PictureFn>> ways{
      {"aligned corners",
       [](const auto& x) {
         return at::upsample_bilinear2d(
             x, {x.size(2) * 2, x.size(3) * 2}, true);
       }},
      {"7 rows",
       [](const auto& x) {
         return at::upsample_nearest2d(x, {7, 5});
       }},
      {"a factor that is not the sizes'", [](const auto& x) {
         return at::upsample_bilinear2d(
             x, {x.size(2) * 2, x.size(3) * 2}, false, 2.25, 2.25);
       }}};
  for (const auto& way : ways) {
    const auto& name = way.first;
    const auto& fn = way.second;
    on_heights({4, 9}, [&](const auto& x, const auto& mesh) {
      expect_as_plain(name, x, mesh, {Shard(2)}, fn);
    });
  }
}

// The factor is part of a call's cache key: 2.05 gives as many rows as 2, from
// other rows.
TEST(UpsamplingInSpace, TellsFactorsApart) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto image = numbers({1, 2, 8, 4}, 1);
    for (const double factor : {2.0, 2.05, 2.1}) {
      const std::vector<double> factors{factor, factor};
      expect_as_plain(
          c10::str("nearest, ", factor),
          image,
          mesh,
          {Shard(2)},
          [&](const at::Tensor& x) {
            return at::upsample_nearest2d(
                x, at::OptionalIntArrayRef(), at::ArrayRef<double>(factors));
          });
      expect_as_plain(
          c10::str("bilinear, ", factor),
          image,
          mesh,
          {Shard(2)},
          [&](const at::Tensor& x) {
            return at::upsample_bilinear2d(
                x,
                at::OptionalIntArrayRef(),
                /*align_corners=*/false,
                at::ArrayRef<double>(factors));
          });
    }
  });
}

TEST(UpsamplingInSpace, SendsTheRowsBesideAShardOnly) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({2, 3, 8, 5}, 1), mesh, {Shard(2)});
    Collectives collectives;
    at::upsample_nearest2d(x, {16, 10});
    EXPECT_EQ(collectives.take(), "");
    at::upsample_bilinear2d(x, {16, 10}, false);
    EXPECT_EQ(collectives.take(), "all_to_all 240"); // a row: 2 x 3 x 5 x 8
  });
}

TEST(PaddingInSpace, KeepsRowsSharded) {
  const std::vector<std::pair<std::string, PictureFn>> ways{
      {"reflection",
       [](const auto& x) {
         return at::reflection_pad2d(x, {1, 2, 2, 1});
       }},
      {"more than a shard",
       [](const auto& x) {
         return at::reflection_pad2d(x, {0, 0, 3, 3});
       }},
      {"replication", [](const auto& x) {
         return at::replication_pad2d(x, {1, 0, 3, 1});
       }}};
  int kept = 0;
  for (const auto& way : ways) {
    const auto& name = way.first;
    const auto& fn = way.second;
    on_heights({4, 8, 9, 11}, [&](const auto& x, const auto& mesh) {
      const auto layout = expect_as_plain(name, x, mesh, {Shard(2)}, fn);
      if (get_rank() == 0 && layout == "S(2)") {
        ++kept;
      }
    });
  }
  EXPECT_GT(kept, 30); // of 48
}

TEST(ResamplingInSpace, OverTwoDimensionsOfSpace) {
  const std::vector<std::pair<std::string, PictureFn>> ways{
      {"bilinear",
       [](const auto& x) {
         return at::upsample_bilinear2d(
             x, {x.size(2) * 2, x.size(3) * 2}, false);
       }},
      {"reflection", [](const auto& x) {
         return at::reflection_pad2d(x, {1, 2, 2, 1});
       }}};
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const auto x = numbers({2, 3, 8, 6}, 1);
    for (const auto& way : ways) {
      const auto& name = way.first;
      const auto& fn = way.second;
      EXPECT_EQ(
          expect_as_plain(name, x, mesh, {Shard(2), Shard(3)}, fn),
          "S(2), S(3)");
      EXPECT_EQ(
          expect_as_plain(name, x, mesh, {Shard(3), Shard(0)}, fn),
          "S(3), S(0)");
      expect_as_plain(name, x, mesh, {Shard(2), Shard(2)}, fn);
    }
  });
}

TEST(ResamplingInSpace, InOneAndThreeDimensions) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto line = numbers({2, 3, 7}, 1);
    const auto volume = numbers({2, 3, 6, 4, 2}, 1);
    const auto expect = [&](const char* name, const auto& x, const auto& fn) {
      const auto layout = expect_as_plain(name, x, mesh, {Shard(2)}, fn);
      EXPECT_EQ(layout.substr(0, 3), "S(2") << name;
    };
    expect("linear1d", line, [](const at::Tensor& x) {
      return at::upsample_linear1d(x, {14}, false);
    });
    expect("reflection1d", line, [](const at::Tensor& x) {
      return at::reflection_pad1d(x, {1, 1});
    });
    expect("trilinear3d", volume, [](const at::Tensor& x) {
      return at::upsample_trilinear3d(x, {12, 8, 4}, false);
    });
    expect("replication3d", volume, [](const at::Tensor& x) {
      return at::replication_pad3d(x, {0, 1, 0, 1, 1, 1});
    });
  });
}

/// A transposed convolution along height and width.
struct Transposed {
  int64_t kernel;
  int64_t stride;
  int64_t padding;
  int64_t dilation;
  int64_t output_padding;

  at::Tensor run(
      const at::Tensor& x,
      const at::Tensor& weight,
      const at::Tensor& bias) const {
    return at::conv_transpose2d(
        x, weight, bias, stride, padding, output_padding, 1, dilation);
  }
  std::string text() const {
    return c10::str(
        "kernel ",
        kernel,
        ", stride ",
        stride,
        ", padding ",
        padding,
        ", dilation ",
        dilation,
        ", output padding ",
        output_padding);
  }
};

std::vector<Transposed> all_transposed() {
  std::vector<Transposed> all;
  for (const int64_t kernel : {1, 2, 3, 5}) {
    for (const int64_t stride : {1, 2, 3}) {
      for (const int64_t padding : {0, 1, 2}) {
        for (const int64_t dilation : {1, 2}) {
          for (const int64_t output_padding : {0, 1}) {
            if (output_padding < std::max(stride, dilation) &&
                dilation * (kernel - 1) + 1 + output_padding > 2 * padding) {
              all.push_back(
                  {kernel, stride, padding, dilation, output_padding});
            }
          }
        }
      }
    }
  }
  return all;
}

// Compares the result and the gradients of all operands. Returns the layout of
// the result.
std::string expect_transposed(
    const Transposed& c,
    int64_t height,
    const DeviceMesh& mesh,
    const Placements& layout) {
  const auto weight = numbers({3, 2, c.kernel, c.kernel}, 2);
  const auto bias = numbers({2}, 3);
  const auto x = numbers({2, 3, height, 6}, 1);
  const auto run = [&](const TensorList& given, const auto& placed) {
    const TensorList leaves{leaf(given[0]), leaf(given[1]), leaf(given[2])};
    const auto y = c.run(leaves[0], leaves[1], leaves[2]);
    auto all =
        torch::autograd::grad({y}, leaves, {placed(numbers(y.sizes(), 9))});
    all.insert(all.begin(), y.detach());
    return all;
  };
  const auto truth =
      run({x, weight, bias}, [](const at::Tensor& t) { return t; });
  const Placements replicated(layout.size(), Replicate());
  const auto got =
      run({place(x, mesh, layout),
           place(weight, mesh, replicated),
           place(bias, mesh, replicated)},
          [&](const at::Tensor& t) -> at::Tensor {
            return place(t, mesh, layout);
          });
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(same(DTensor(got[i]).full_tensor(), truth[i]))
        << c.text() << ", height " << height << ": " << i;
  }
  return layout_of(got[0]);
}

// Some shards are empty, and some kernels are wider than a shard.
TEST(TransposedConvolutionInSpace, TakesAllSizesAndKernels) {
  for (const int64_t ranks : {2, 3, 5}) {
    int kept = 0;
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      int kept_here = 0;
      for (const auto& c : all_transposed()) {
        for (const int64_t height : {2, 5, 8}) {
          kept_here +=
              expect_transposed(c, height, mesh, {Shard(2)}) == "S(2)" ? 1 : 0;
        }
      }
      if (get_rank() == 0) {
        kept = kept_here;
      }
    });
    EXPECT_GT(kept, 100) << ranks;
  }
}

TEST(TransposedConvolutionInSpace, OverTwoDimensionsOfSpace) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    for (const auto& c :
         {Transposed{2, 2, 0, 1, 0}, Transposed{3, 2, 1, 1, 1}}) {
      EXPECT_EQ(
          expect_transposed(c, 8, mesh, {Shard(2), Shard(3)}), "S(2), S(3)");
      EXPECT_EQ(
          expect_transposed(c, 7, mesh, {Shard(0), Shard(2)}), "S(0), S(2)");
    }
  });
}

// A kernel that is not wider than the stride needs no rows of other ranks.
TEST(TransposedConvolutionInSpace, SendsTheRowsBesideAShardOnly) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({2, 3, 8, 5}, 1), mesh, {Shard(2)});
    const auto run = [&](int64_t kernel, int64_t stride, int64_t padding) {
      const at::Tensor w =
          place(numbers({3, 2, kernel, kernel}, 2), mesh, {Replicate()});
      Collectives collectives;
      at::conv_transpose2d(x, w, {}, stride, padding);
      return collectives.take();
    };
    EXPECT_EQ(run(2, 2, 0), "");
    EXPECT_EQ(run(4, 2, 1), "all_to_all 240");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
