// SPDX-License-Identifier: BSD-3-Clause
// roll, flip and constant padding of a sharded dimension give the results and
// gradients of the plain operator, in the layout of the operand.
#include <tests/ops/against_plain.h>
#include <tests/ops/oracle.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace against_plain;
using testing::Collectives;

std::string layout_of(const at::Tensor& t) {
  std::string text;
  for (const auto& p : DTensor(t).placements()) {
    text += (text.empty() ? "" : ", ") + to_string(p);
  }
  return text;
}

at::Tensor whole(const at::Tensor& t) {
  return DTensor(t).full_tensor();
}

// Checks results and gradients in every layout, also with empty shards.
void check_everywhere(const std::vector<OpCase>& cases) {
  check_cases(cases);
  Failures failures;
  run_ranks(7, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {7});
    for (const auto& c : cases) {
      check_case(c, mesh, failures);
    }
  });
  EXPECT_EQ(failures.text(), "");
}

TEST(ShardedRows, InEveryLayout) {
  const auto x = numbers({7, 4, 3}, 1);
  const auto turned = numbers({3, 4, 7}, 2).permute({2, 1, 0});
  const auto roll = [](const char* name,
                       const at::Tensor& t,
                       std::vector<int64_t> shifts,
                       std::vector<int64_t> dims) {
    return unary(name, t, [=](auto& in) { return in.roll(shifts, dims); });
  };
  const auto flip =
      [](const char* name, const at::Tensor& t, std::vector<int64_t> dims) {
        return unary(name, t, [=](auto& in) { return in.flip(dims); });
      };
  const auto pad = [](const char* name,
                      const at::Tensor& t,
                      std::vector<int64_t> pads,
                      double value) {
    return unary(name, t, [=](auto& in) {
      return at::constant_pad_nd(in, pads, value);
    });
  };
  check_everywhere({
      roll("roll", x, {1}, {0}),
      roll("roll back", x, {-3}, {0}),
      roll("roll far", x, {23}, {-3}),
      roll("roll all the way", x, {7}, {0}),
      roll("roll two", x, {2, -1}, {0, 1}),
      roll("roll twice", x, {2, 3}, {0, 0}),
      roll("roll, not contiguous", turned, {5}, {0}),
      roll("roll flat", x, {5}, {}),
      flip("flip", x, {0}),
      flip("flip two", x, {-1, 0}),
      flip("flip, not contiguous", turned, {0}),
      pad("pad", x, {0, 0, 0, 0, 2, 1}, 0),
      pad("pad with ones", x, {0, 0, 0, 0, 0, 9}, 1),
      pad("pad much", x, {0, 0, 0, 0, 9, 0}, 2),
      pad("pad two", x, {0, 0, 1, 2, 1, 0}, 3),
      pad("crop", x, {0, 0, 0, 0, -2, -1}, 0),
      pad("crop and pad", x, {1, -1, 0, 0, -3, 2}, 4),
      pad("crop behind", x, {0, 0, 0, 0, 1, -4}, 0),
      pad("crop almost all", x, {0, 0, 0, 0, -6, 0}, 0),
      pad("pad, not contiguous", turned, {0, 0, 0, 0, 1, 1}, 0),
      unary(
          "squared",
          x,
          [](auto& t) {
            return t.roll(2, 0) * t.flip({0}) +
                at::constant_pad_nd(t, {0, 0, 0, 0, 1, -1}, 1) * t;
          }),
  });
}

TEST(ShardedRows, KeepTheirLayoutAndMoveFewRows) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {4});
    const auto plain = numbers({8, 4}, 1);
    const at::Tensor x = place(plain, mesh, {Shard(0)});
    const auto pads = std::vector<int64_t>{0, 0, 2, 2};
    Collectives collectives;
    const auto rolled = x.roll(1, 0);
    EXPECT_EQ(collectives.take(), "all_to_all 32"); // a row
    const auto turned = x.roll(8, 0);
    EXPECT_EQ(collectives.take(), "");
    const auto flipped = x.flip({0});
    EXPECT_EQ(collectives.take(), "all_to_all 64");
    // 12 rows, 3 on each rank; rank 0 has padding and row 0.
    const auto padded = at::constant_pad_nd(x, pads, 1);
    EXPECT_EQ(
        collectives.take(),
        c10::str("all_to_all ", get_rank() % 3 == 0 ? 32 : 0));
    for (const auto& y : {rolled, turned, flipped, padded}) {
      EXPECT_EQ(layout_of(y), "S(0)");
    }
    EXPECT_TRUE(at::equal(whole(rolled), plain.roll(1, 0)));
    EXPECT_TRUE(at::equal(whole(flipped), plain.flip({0})));
    EXPECT_TRUE(at::equal(whole(padded), at::constant_pad_nd(plain, pads, 1)));
  });
}

TEST(ShardedRows, OverTwoMeshDimensions) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const auto plain = numbers({7, 6}, 1);
    const at::Tensor x = place(plain, mesh, {Shard(1), Shard(0)});
    const auto rolled = x.roll({2, 1}, {0, 1});
    const auto flipped = x.flip({0, 1});
    const auto padded = at::constant_pad_nd(x, {1, -2, -1, 3}, 5);
    for (const auto& y : {rolled, flipped, padded}) {
      EXPECT_EQ(layout_of(y), "S(1), S(0)");
    }
    EXPECT_TRUE(at::equal(whole(rolled), plain.roll({2, 1}, {0, 1})));
    EXPECT_TRUE(at::equal(whole(flipped), plain.flip({0, 1})));
    EXPECT_TRUE(at::equal(
        whole(padded), at::constant_pad_nd(plain, {1, -2, -1, 3}, 5)));
  });
}

TEST(ShardedRows, SecondDerivatives) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto plain = numbers({7, 4}, 1);
    const auto run = [](const at::Tensor& x) {
      const auto padded = at::constant_pad_nd(x.slice(0, 1), {0, 0, 2, -1}, 3);
      const auto loss = (padded * x.roll(3, 0).flip({0})).pow(2).sum();
      const auto grad = torch::autograd::grad(
          {loss}, {x}, {}, true, /*create_graph=*/true)[0];
      return torch::autograd::grad({grad.pow(2).sum()}, {x})[0];
    };
    const auto truth = run(leaf(plain));
    for (const auto& p : {Shard(0), Shard(1), Replicate()}) {
      const auto got = run(leaf(place(plain, mesh, {p})));
      EXPECT_TRUE(at::allclose(whole(got), truth)) << p;
    }
  });
}

TEST(ShardedRows, WithoutData) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = distribute_tensor(
        at::empty({5, 4}, at::TensorOptions().device(at::kMeta)),
        mesh,
        {Shard(0)});
    Collectives collectives;
    EXPECT_EQ(layout_of(x.roll(1, 0)), "S(0)");
    EXPECT_EQ(layout_of(x.flip({0})), "S(0)");
    EXPECT_EQ(layout_of(at::constant_pad_nd(x, {0, 0, 1, 0})), "S(0)");
    EXPECT_EQ(collectives.take(), "");
  });
}

TEST(ShardedRows, RefuseWhatThePlainOperatorRefuses) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const at::Tensor x = place(numbers({5, 4}, 1), mesh, {Shard(0)});
    EXPECT_THROW(x.roll({1, 2}, {0}), c10::Error);
    EXPECT_THROW(x.flip({0, 0}), c10::Error);
    EXPECT_THROW(at::constant_pad_nd(x, {0, 0, -3, -3}), c10::Error);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
