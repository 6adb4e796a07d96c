// SPDX-License-Identifier: BSD-3-Clause
#include "oracle.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;

void check(const std::string& name, const Tensors& operands, const auto& fn) {
  SCOPED_TRACE(name);
  SameAsPlainOptions options;
  options.layouts = 12;
  EXPECT_NO_THROW(expect_same_as_plain(
      [&](const Tensors& t) -> Tensors { return {fn(t)}; }, operands, options));
}

// Sizes that are uneven, or fewer than ranks, in each dimension.
const std::vector<std::vector<int64_t>> kSizes = {{5, 3, 4}, {1, 2, 7}};

TEST(Fft, OfComplexNumbers) {
  for (const auto& sizes : kSizes) {
    const Tensors x = {variable(sizes, 1), variable(sizes, 2)};
    for (const int64_t dim : {0, 1, -1}) {
      check("fft", x, [dim](const Tensors& t) {
        return at::view_as_real(
            at::fft_fft(at::complex(t[0], t[1]), {}, dim, "ortho"));
      });
      check("ifft", x, [dim](const Tensors& t) {
        return at::view_as_real(at::fft_ifft(at::complex(t[0], t[1]), 6, dim));
      });
    }
    check("fftn", x, [](const Tensors& t) {
      return at::real(at::fft_fftn(at::complex(t[0], t[1])));
    });
    check("fft2", x, [](const Tensors& t) {
      const std::vector<int64_t> dims{0, 2};
      return at::imag(at::fft_fft2(at::complex(t[0], t[1]), {}, dims));
    });
  }
}

TEST(Fft, BetweenRealAndComplexNumbers) {
  for (const auto& sizes : kSizes) {
    const Tensors x = {variable(sizes, 1), variable(sizes, 2)};
    for (const int64_t dim : {0, 1, 2}) {
      check("rfft", {x[0]}, [dim](const Tensors& t) {
        return at::view_as_real(at::fft_rfft(t[0], {}, dim));
      });
      check("fft of real numbers", {x[0]}, [dim](const Tensors& t) {
        return at::view_as_real(at::fft_fft(t[0], {}, dim));
      });
      check("irfft", x, [dim](const Tensors& t) {
        return at::fft_irfft(at::complex(t[0], t[1]), 5, dim);
      });
      check("hfft", x, [dim](const Tensors& t) {
        return at::fft_hfft(at::complex(t[0], t[1]), 4, dim);
      });
    }
    check("rfftn", {x[0]}, [](const Tensors& t) {
      return at::view_as_real(at::fft_rfftn(t[0]));
    });
    check("irfft2", x, [](const Tensors& t) {
      return at::fft_irfft2(
          at::complex(t[0], t[1]), std::vector<int64_t>{2, 6});
    });
  }
}

TEST(Fft, OtherDimensionsStaySharded) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto full = uniform({5, 4, 6}, 1);
    for (const auto& kind :
         Placements{Shard(0), Shard(1), Partial(ReduceOp::kSum)}) {
      const auto x = in_layout(full, mesh, {kind}).requires_grad_();
      Collectives collectives;
      const auto y = at::fft_rfft(x);
      EXPECT_EQ(DTensor(y).placements()[0], kind);
      const auto z = at::fft_irfft(y, 6);
      EXPECT_EQ(DTensor(z).placements()[0], kind);
      const auto whole = kind.is_partial() ? Placement(Replicate()) : kind;
      z.backward(in_layout(full, mesh, {whole}));
      EXPECT_EQ(collectives.take(), "");
    }
  });
}

// A transformed dimension that is sharded moves to another dimension.
TEST(Fft, TransformedDimensionMovesByAllToAll) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = in_layout(uniform({4, 6}, 1), mesh, {Shard(1)});
    Collectives collectives;
    const auto y = at::fft_rfft(x);
    EXPECT_EQ(DTensor(y).placements()[0], Shard(0));
    EXPECT_EQ(collectives.take().substr(0, 10), "all_to_all");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
