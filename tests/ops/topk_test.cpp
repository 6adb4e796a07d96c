// SPDX-License-Identifier: BSD-3-Clause
// topk along a sharded dimension gives the plain operator's result on the full
// tensor, and exchanges only candidates.
#include <dtensor/debug/comm_debug_mode.h>
#include <gtest/gtest.h>
#include <tests/ops/against_plain.h>
#include <torch/torch.h>

#include <limits>
#include <tuple>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

using against_plain::check_cases;
using against_plain::layouts;
using against_plain::OpCase;
using against_plain::TensorList;

// Returns distinct numbers.
at::Tensor distinct(at::IntArrayRef sizes, at::ScalarType dtype) {
  auto generator = at::detail::createCPUGenerator(3);
  const auto count = c10::multiply_integers(sizes);
  return at::randperm(count, generator, at::kLong).view(sizes).to(dtype) -
      (dtype == at::kByte ? 0 : 7);
}

OpCase topk_case(at::Tensor input, int64_t k, int64_t dim, bool largest) {
  return {"topk", {std::move(input)}, [=](const TensorList& in) {
            auto [values, indices] = in[0].topk(k, dim, largest);
            // The indices get no gradient.
            return TensorList{values};
          }};
}

TEST(Topk, HasThePlainValuesAndGradients) {
  std::vector<OpCase> cases;
  for (const int64_t k : {1, 5}) {
    for (const bool largest : {true, false}) {
      cases.push_back(topk_case(distinct({2, 25}, at::kDouble), k, 1, largest));
      cases.push_back(
          topk_case(distinct({25, 1, 2}, at::kDouble), k, -3, largest));
      cases.push_back(topk_case(distinct({7}, at::kDouble), k, 0, largest));
    }
  }
  cases.push_back(topk_case(distinct({3, 0}, at::kDouble), 0, 1, true));
  cases.push_back(topk_case(distinct({0, 9}, at::kDouble), 4, 1, true));
  cases.push_back(topk_case(distinct({}, at::kDouble), 1, 0, true));
  cases.push_back(topk_case(distinct({40, 3}, at::kDouble).t(), 3, 1, true));
  check_cases(cases);
}

void expect_as_plain(
    const at::Tensor& whole,
    const DeviceMesh& mesh,
    const Placements& layout,
    int64_t k) {
  const auto d = distribute_tensor(whole, mesh, layout, std::nullopt);
  for (int64_t dim = 0; dim < whole.dim(); ++dim) {
    for (const bool largest : {true, false}) {
      const auto count = std::min(k, whole.size(dim));
      const auto [values, indices] = at::topk(whole, count, dim, largest);
      const auto [got, places] = at::topk(d, count, dim, largest);
      const auto what = to_string(*DTensor(d).spec());
      EXPECT_TRUE(
          at::allclose(full_tensor(got), values, 0, 0, /*equal_nan=*/true))
          << what << "\n"
          << whole;
      // Among equal elements, any may be picked.
      const auto full_places = full_tensor(places);
      EXPECT_TRUE(at::allclose(
          whole.gather(dim, full_places), values, 0, 0, /*equal_nan=*/true))
          << what << "\n"
          << whole;
      const auto [ordered, order] = full_places.sort(dim);
      EXPECT_TRUE(ordered.diff(1, dim).ne(0).all().item<bool>()) << what;
      EXPECT_EQ(places.scalar_type(), at::kLong);
    }
  }
}

// Returns few distinct numbers, so that many are equal.
at::Tensor drawn(at::IntArrayRef sizes, at::ScalarType dtype, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const auto t = at::randint(0, 5, sizes, generator, at::kLong);
  if (!at::isFloatingType(dtype)) {
    return t.to(dtype);
  }
  auto real = (t - 2).to(at::kDouble);
  const auto infinity = std::numeric_limits<double>::infinity();
  real.masked_fill_(t.eq(4), infinity).masked_fill_(t.eq(0), -infinity);
  const auto none = at::randint(0, 9, sizes, generator, at::kLong).eq(0);
  return real.masked_fill(none, std::nan("")).to(dtype);
}

TEST(Topk, TakesAllDtypesAndEqualElements) {
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      uint64_t seed = 0;
      for (const auto dtype :
           {at::kDouble,
            at::kFloat,
            at::kBFloat16,
            at::kHalf,
            at::kLong,
            at::kInt,
            at::kShort,
            at::kByte}) {
        for (const auto& kind : std::vector<Placement>{
                 Replicate(),
                 Shard(0),
                 Shard(1),
                 Shard(1, 2),
                 StridedShard(1, 2)}) {
          for (const int64_t columns : {4, 31}) {
            expect_as_plain(
                drawn({3, columns}, dtype, ++seed), mesh, {kind}, 2);
          }
          expect_as_plain(drawn({2, 100}, dtype, ++seed), mesh, {kind}, 9);
        }
      }
    });
  }
}

TEST(Topk, OverSeveralMeshDimensions) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"a", "b"});
    uint64_t seed = 100;
    for (const auto& layout : layouts(2, 2, false)) {
      for (const int64_t columns : {5, 64}) {
        expect_as_plain(
            drawn({2, columns}, at::kDouble, ++seed), mesh, layout, 3);
        expect_as_plain(distinct({2, columns}, at::kInt), mesh, layout, 3);
      }
    }
    expect_as_plain(
        drawn({2, 64}, at::kFloat, ++seed),
        mesh,
        {StridedShard(1, 2), Shard(1)},
        3);
  });
}

TEST(Topk, RanksAgreeOnEqualElements) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    const auto d = distribute_tensor(at::ones({90}), mesh, {Shard(0)}, {});
    const auto places = to_local(std::get<1>(at::topk(d, 7)));
    const auto first = get_group(mesh).broadcast(places, 0);
    EXPECT_TRUE(at::equal(places, first));
  });
}

TEST(Topk, HasSecondDerivatives) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    const auto whole = distinct({2, 40}, at::kDouble) / 8;
    const auto second = [](at::Tensor x) {
      x = x.detach().requires_grad_();
      const auto y = std::get<0>((x * x * x).topk(4, 1));
      const auto first =
          torch::autograd::grad({(y * y).sum()}, {x}, {}, true, true)[0];
      return torch::autograd::grad({(first * first).sum()}, {x})[0];
    };
    const auto d = distribute_tensor(whole, mesh, {Shard(1)}, std::nullopt);
    EXPECT_TRUE(at::allclose(full_tensor(second(d)), second(whole)));
  });
}

TEST(Topk, CostsOneCollectiveOfCandidates) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
    auto logits = distribute_tensor(
        drawn({2, 50000}, at::kFloat, 1), mesh, {Shard(1)}, std::nullopt);
    logits.requires_grad_();
    const CommDebugMode mode;
    const auto values = std::get<0>(at::topk(logits, 10));
    EXPECT_EQ(mode.total().count, 1);
    EXPECT_LE(mode.total().payload_bytes, 4 * 2 * 10 * (4 + 4));
    values.sum().backward();
    EXPECT_EQ(mode.total().count, 1); // none in the backward pass
    EXPECT_EQ(DTensor(logits.grad()).placements()[0], Shard(1));
  });
}

TEST(Topk, WritesToGivenTensors) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto whole = distinct({50}, at::kFloat);
    const auto d = distribute_tensor(whole, mesh, {Shard(0)}, std::nullopt);
    auto values = distribute_tensor(at::zeros({3}), mesh, {}, std::nullopt);
    auto places =
        distribute_tensor(at::zeros({3}, at::kLong), mesh, {}, std::nullopt);
    at::topk_out(values, places, d, 3);
    const auto [expected, indices] = at::topk(whole, 3);
    EXPECT_TRUE(at::equal(full_tensor(values), expected));
    EXPECT_TRUE(at::equal(full_tensor(places), indices));
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
