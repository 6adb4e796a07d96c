// SPDX-License-Identifier: BSD-3-Clause
#include "oracle.h"

#include <tests/error_of.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;
using test_text::error_of;

void check(const std::string& name, const Tensors& operands, const auto& fn) {
  SCOPED_TRACE(name);
  SameAsPlainOptions options;
  options.layouts = 12;
  EXPECT_NO_THROW(expect_same_as_plain(
      [&](const Tensors& t) -> Tensors { return {fn(t)}; }, operands, options));
}

// Sizes that are uneven on 2 ranks, fewer than ranks, and zero.
const std::vector<std::vector<int64_t>> kSizes = {{5, 4}, {1, 4}, {0, 4}};

TEST(Lookup, PlacesInSortedNumbers) {
  const auto edges = at::linspace(0, 1, 6, at::kDouble);
  for (const auto& sizes : kSizes) {
    const auto x = uniform(sizes, 1);
    check("bucketize", {x, edges}, [](const Tensors& t) {
      return at::bucketize(t[0], t[1], /*out_int32=*/true);
    });
    check("searchsorted in a vector", {edges, x}, [](const Tensors& t) {
      return at::searchsorted(t[0], t[1], false, /*right=*/true);
    });
    const auto rows = std::get<0>(uniform({sizes[0], 3}, 2).sort(1));
    check("searchsorted in rows", {rows, x}, [](const Tensors& t) {
      return at::searchsorted(t[0], t[1]);
    });
  }
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto in = [&](at::IntArrayRef sizes) -> at::Tensor {
      return distribute_tensor(uniform(sizes, 1), mesh, {Shard(0)});
    };
    EXPECT_NE(
        error_of([&] {
          at::searchsorted(in({3, 2}), in({4, 2}));
        }).find("needs a sorted vector, or one for each row"),
        std::string::npos);
  });
}

TEST(Lookup, Membership) {
  for (const auto& sizes : kSizes) {
    const Tensors x = {small_ints(sizes, 1), small_ints({3}, 2)};
    for (const bool invert : {false, true}) {
      check("isin", x, [invert](const Tensors& t) {
        return at::isin(t[0], t[1], false, invert);
      });
    }
    check("isin of a number", {x[0]}, [](const Tensors& t) {
      return at::isin(t[0], 3);
    });
  }
}

TEST(Lookup, ElementsByFlatIndex) {
  for (const auto& sizes : kSizes) {
    check(
        "take",
        {variable({4, 3}, 1), small_ints(sizes, 2)},
        [](const Tensors& t) { return at::take(t[0], t[1]); });
  }
}

TEST(Lookup, Counts) {
  for (const auto& sizes : kSizes) {
    const auto x = uniform(sizes, 1);
    check("histc", {x}, [](const Tensors& t) {
      return at::histc(t[0], 5, 0.2, 0.7);
    });
    if (x.numel() > 0) {
      check("histc of all", {x}, [](const Tensors& t) {
        return at::histc(t[0], 5);
      });
    }
  }
  for (const int64_t size : {7, 1, 0}) {
    const Tensors x = {small_ints({size}, 1), uniform({size}, 2)};
    check("bincount", {x[0]}, [](const Tensors& t) {
      return at::bincount(t[0]);
    });
    check("bincount with weights", x, [](const Tensors& t) {
      return at::bincount(t[0], t[1], 9);
    });
  }
}

TEST(Lookup, AShardedBincountIsPartial) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x =
        distribute_tensor(at::tensor({0, 1, 1, 3}), mesh, {Shard(0)});
    const auto counts = at::bincount(x);
    EXPECT_EQ(DTensor(counts).placements()[0], Partial());
    EXPECT_TRUE(at::equal(full_tensor(counts), at::tensor({1, 2, 0, 1})));
    EXPECT_NE(
        error_of([&] { at::bincount(x - 1); }).find("non-negative"),
        std::string::npos);
  });
}

TEST(Lookup, GatedLinearUnits) {
  for (const auto& sizes : kSizes) {
    check("glu", {variable(sizes, 1)}, [](const Tensors& t) {
      return at::glu(t[0], -1);
    });
  }
  check("glu of rows", {variable({6, 5}, 1)}, [](const Tensors& t) {
    return at::glu(t[0], 0);
  });
}

// The formula of the second gradient creates plain ones.
TEST(Lookup, GatedLinearUnitsDifferentiateTwice) {
  const auto twice = [](const at::Tensor& x, int64_t dim) {
    const auto loss = at::glu(x, dim).pow(2).sum();
    const auto grad = torch::autograd::grad({loss}, {x}, {}, {}, true)[0];
    return torch::autograd::grad({grad.pow(2).sum()}, {x})[0];
  };
  const std::vector<std::vector<int64_t>> all_sizes = {
      {6, 4}, {2, 4}, {4, 2, 6}, {0, 4}};
  for (const auto& sizes : all_sizes) {
    for (const int64_t dim : {0, -1}) {
      const auto x = variable(sizes, 1);
      const auto truth = twice(x, dim);
      run_ranks(3, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {3});
        for (const auto& p : Placements{Replicate(), Shard(0), Shard(1)}) {
          auto mine = place(x.detach(), mesh, p);
          mine.set_requires_grad(true);
          EXPECT_TRUE(close(full(twice(mine, dim)), truth))
              << p << " " << dim << " " << at::IntArrayRef(sizes);
        }
      });
    }
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
