// SPDX-License-Identifier: BSD-3-Clause
// sort along a sharded dimension gives the plain operator's result, and keeps
// the shards. Operators that find elements by rank, which gather the dimension,
// also give the plain result.
#include <dtensor/debug/comm_debug_mode.h>
#include <gtest/gtest.h>
#include <tests/ops/against_plain.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <tuple>
#include <vector>

namespace dtensor {
namespace TEST_SOURCE {

using against_plain::check_cases;
using against_plain::OpCase;
using against_plain::TensorList;

// Returns distinct numbers.
at::Tensor distinct(at::IntArrayRef sizes) {
  auto generator = at::detail::createCPUGenerator(3);
  const auto count = c10::multiply_integers(sizes);
  return at::randperm(count, generator, at::kDouble).view(sizes);
}

// Returns few distinct numbers, so that many are equal: NaN, infinities and
// zeros of both signs among them.
at::Tensor drawn(at::IntArrayRef sizes, at::ScalarType dtype, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  const auto t = at::randint(0, 40, sizes, generator, at::kLong);
  if (!at::isFloatingType(dtype)) {
    auto numbers = t.to(dtype);
    return dtype == at::kLong
        ? numbers.masked_fill(t.eq(39), std::numeric_limits<int64_t>::max())
        : numbers;
  }
  const auto infinity = std::numeric_limits<double>::infinity();
  return (t - 20)
      .to(at::kDouble)
      .masked_fill(t.eq(4), infinity)
      .masked_fill(t.eq(0), -infinity)
      .masked_fill(t.eq(1), -0.0)
      .masked_fill(t.eq(2), std::nan(""))
      .to(dtype);
}

bool is_equal(const at::Tensor& a, const at::Tensor& b) {
  return at::allclose(a, b, 0, 0, /*equal_nan=*/true);
}

void expect_as_plain(
    const at::Tensor& whole,
    const DeviceMesh& mesh,
    const Placements& layout,
    int64_t dim,
    const Placements& expected_layout) {
  const auto d = distribute_tensor(whole, mesh, layout, std::nullopt);
  for (const bool descending : {false, true}) {
    const auto [values, indices] = at::sort(whole, true, dim, descending);
    const auto [got, places] = at::sort(d, true, dim, descending);
    const auto what = to_string(*DTensor(d).spec());
    EXPECT_TRUE(is_equal(full_tensor(got), values)) << what;
    EXPECT_TRUE(at::equal(full_tensor(places), indices)) << what;
    EXPECT_EQ(Placements(DTensor(got).placements()), expected_layout) << what;
    EXPECT_TRUE(
        at::equal(full_tensor(at::argsort(d, true, dim, descending)), indices))
        << what;
  }
}

TEST(Sort, KeepsTheShardsAndTheOrderOfEqualElements) {
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      uint64_t seed = 0;
      for (const auto dtype : {at::kDouble, at::kLong}) {
        for (const int64_t size : {6001, 12000}) {
          expect_as_plain(
              drawn({size}, dtype, ++seed), mesh, {Shard(0)}, 0, {Shard(0)});
        }
        expect_as_plain(
            drawn({1, 8200}, dtype, ++seed), mesh, {Shard(1)}, 1, {Shard(1)});
      }
      // Equal elements only; sorted elements.
      expect_as_plain(
          at::ones({9000}, at::kLong), mesh, {Shard(0)}, 0, {Shard(0)});
      expect_as_plain(
          at::arange(9000, at::kLong), mesh, {Shard(0)}, 0, {Shard(0)});
    });
  }
}

TEST(Sort, TakesSeveralRowsAndSmallDtypes) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {4}, {"tp"});
    uint64_t seed = 50;
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kInt}) {
      expect_as_plain(
          drawn({90001, 3}, dtype, ++seed), mesh, {Shard(0)}, 0, {Shard(0)});
    }
    // A dimension this short is gathered.
    expect_as_plain(
        at::randint(0, 2, {9, 1}).to(at::kBool),
        mesh,
        {Shard(0)},
        0,
        {Replicate()});
  });
}

TEST(Sort, OverOneOfTwoMeshDimensions) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"a", "b"});
    const auto rows = drawn({1, 9001}, at::kDouble, 7);
    expect_as_plain(
        rows, mesh, {Shard(1), Replicate()}, 1, {Shard(1), Replicate()});
    expect_as_plain(
        rows, mesh, {Replicate(), Shard(1)}, 1, {Replicate(), Shard(1)});
    expect_as_plain(
        rows, mesh, {Shard(1), Shard(1)}, 1, {Replicate(), Shard(1)});
  });
}

// The rows of a rank are a subset of all rows.
TEST(Sort, RowsAreShardedOverTheOtherMeshDimension) {
  run_ranks(6, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 3}, {"a", "b"});
    const Placements layout{Shard(0), Shard(1)};
    // Half of the ranks have no rows.
    const auto row = distinct({1, 30001});
    expect_as_plain(row, mesh, layout, 1, layout);
    EXPECT_TRUE(at::equal(
        full_tensor(std::get<0>(at::kthvalue(
            distribute_tensor(row, mesh, layout, std::nullopt), 4321, 1))),
        std::get<0>(at::kthvalue(row, 4321, 1))));
    const auto rows = distinct({2, 30001});
    expect_as_plain(rows, mesh, layout, 1, layout);
    const auto [value, index] = at::kthvalue(
        distribute_tensor(rows, mesh, layout, std::nullopt), 4321, 1);
    const auto [true_value, true_index] = at::kthvalue(rows, 4321, 1);
    EXPECT_TRUE(at::equal(full_tensor(value), true_value));
    EXPECT_TRUE(at::equal(full_tensor(index), true_index));
  });
}

TEST(Sort, HasThePlainGradients) {
  const auto input = distinct({9000}) / 8;
  check_cases(
      {{"sort",
        {input},
        [](const TensorList& in) {
          return TensorList{std::get<0>(in[0].sort(0))};
        }},
       {"rows",
        {distinct({9000, 1}).expand({9000, 3}) *
         at::tensor({1.0, -2.0, 0.5}, at::kDouble)},
        [](const TensorList& in) {
          return TensorList{std::get<0>(in[0].sort(0))};
        }},
       {"msort", {input}, [](const TensorList& in) {
          return TensorList{in[0].msort()};
        }}});
}

TEST(Sort, HasSecondDerivatives) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3}, {"tp"});
    const auto whole = distinct({9000}) / 9000;
    const auto factors = at::arange(9000, at::kDouble) / 9000;
    const auto second = [](at::Tensor x, const at::Tensor& weights) {
      x = x.detach().requires_grad_();
      const auto y = std::get<0>((x * x).sort(0));
      const auto first = torch::autograd::grad(
          {(y * y * weights).sum()}, {x}, {}, true, true)[0];
      return torch::autograd::grad({(first * first).sum()}, {x})[0];
    };
    const auto put = [&](const at::Tensor& t) {
      return distribute_tensor(t, mesh, {Shard(0)}, std::nullopt);
    };
    EXPECT_TRUE(at::allclose(
        full_tensor(second(put(whole), put(factors))), second(whole, factors)));
  });
}

// Each element moves once. Its index is a bit per element of the shard and
// receiving rank.
TEST(Sort, MovesFewerBytesThanGathering) {
  struct Bound {
    int64_t ranks;
    int64_t elements;
    at::ScalarType dtype;
    double share; // of the bytes of gathering
  };
  for (const Bound bound :
       {Bound{4, 120'000, at::kDouble, 0.5},
        Bound{4, 1'000'000, at::kFloat, 0.36},
        Bound{2, 1'000'000, at::kFloat, 0.6}}) {
    run_ranks(bound.ranks, [bound] {
      const auto mesh = init_device_mesh(at::kCPU, {bound.ranks}, {"tp"});
      const auto d = distribute_tensor(
          drawn({bound.elements}, bound.dtype, 1),
          mesh,
          {Shard(0)},
          std::nullopt);
      const CommDebugMode gathering;
      full_tensor(d);
      const auto gathered = static_cast<double>(gathering.total().wire_bytes);
      const CommDebugMode sorting;
      at::sort(d);
      EXPECT_LE(
          static_cast<double>(sorting.total().wire_bytes),
          bound.share * gathered);
    });
  }
}

// Returns the case of a function that returns values and indices.
OpCase picking(
    std::string name,
    const at::Tensor& input,
    std::function<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&)> fn) {
  return {std::move(name), {input}, [fn = std::move(fn)](const TensorList& in) {
            return TensorList{std::get<0>(fn(in[0]))};
          }};
}

TEST(Sort, ElementsByRankMatchThePlainTensor) {
  std::vector<OpCase> cases;
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{2, 7}, {7}, {}}) {
    const auto x = distinct(sizes);
    using T = const at::Tensor&;
    cases.push_back(
        picking("kthvalue", x, [](T t) { return t.kthvalue(1, -1); }));
    cases.push_back(picking("median.dim", x, [](T t) { return t.median(-1); }));
    cases.push_back(
        picking("nanmedian.dim", x, [](T t) { return t.nanmedian(-1); }));
    cases.push_back(picking("mode", x, [](T t) { return t.mode(-1); }));
    cases.push_back(
        against_plain::unary("median", x, [](T t) { return t.median(); }));
    cases.push_back(against_plain::unary(
        "nanmedian", x, [](T t) { return t.nanmedian(); }));
  }
  check_cases(cases);
}

// The most frequent element of each row needs no communication.
TEST(Sort, ModeLeavesOtherDimsSharded) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto plain = drawn({5, 70}, at::kDouble, 1).nan_to_num();
    auto x = distribute_tensor(plain, mesh, {Shard(0)}, std::nullopt);
    x.set_requires_grad(true);
    const CommDebugMode comm;
    const auto [values, places] = at::mode(x, 1);
    EXPECT_EQ(DTensor(values).placements(), Placements{Shard(0)});
    EXPECT_EQ(DTensor(places).placements(), Placements{Shard(0)});
    values.backward(values.detach());
    EXPECT_EQ(comm.get_total_counts(), 0);
    const auto truth = std::get<0>(plain.mode(1));
    EXPECT_TRUE(is_equal(full_tensor(values).detach(), truth));
  });
}

// Returns distinct numbers; with `nans`, some are replaced by NaN.
at::Tensor spread(at::IntArrayRef sizes, at::ScalarType dtype, bool nans) {
  const auto t = distinct(sizes) - 2000;
  return (nans ? t.masked_fill(t.lt(-1990), std::nan("")) : t).to(dtype);
}

using Selection =
    std::function<std::tuple<at::Tensor, at::Tensor>(const at::Tensor&)>;

const std::vector<Selection>& selections() {
  static const std::vector<Selection> all{
      [](const auto& x) { return at::kthvalue(x, 1, 0); },
      [](const auto& x) { return at::kthvalue(x, 4321, -1, true); },
      [](const auto& x) { return at::kthvalue(x, x.size(0), 0); },
      [](const auto& x) { return at::median(x, 0); },
      [](const auto& x) { return at::nanmedian(x, 0, true); }};
  return all;
}

// Elements and indices are those of the plain operator, and the gradient is
// scattered into the shards.
TEST(Selection, FindsElementsOfShards) {
  for (const int64_t ranks : {2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks}, {"tp"});
      const std::vector<at::Tensor> operands{
          spread({20001}, at::kDouble, false),
          spread({20000}, at::kFloat, true),
          spread({20001}, at::kLong, false),
          at::full({20000}, std::nan(""), at::kDouble)};
      for (const auto& whole : operands) {
        for (const auto& select : selections()) {
          auto x = distribute_tensor(whole, mesh, {Shard(0)}, std::nullopt);
          auto plain = whole.clone();
          const bool differentiable = whole.is_floating_point();
          x.set_requires_grad(differentiable);
          plain.set_requires_grad(differentiable);
          const CommDebugMode comm;
          const auto [value, index] = select(x);
          EXPECT_EQ(comm.total({.kind = CollectiveKind::kAllGather}).count, 2);
          const auto [true_value, true_index] = select(plain);
          EXPECT_TRUE(is_equal(full_tensor(value), true_value.detach()));
          EXPECT_EQ(full_tensor(index).sizes(), true_index.sizes());
          EXPECT_TRUE(
              is_equal(whole.take(full_tensor(index)), whole.take(true_index)));
          if (differentiable && !at::isnan(true_value).any().item<bool>()) {
            value.sum().backward();
            true_value.sum().backward();
            EXPECT_TRUE(at::equal(full_tensor(x.grad()), plain.grad()));
          }
        }
      }
    });
  }
}

// Samples of 3 * sqrt(shard * ranks) elements take the place of 10,000 elements
// of the other rank.
TEST(Selection, MovesFewerBytesThanGathering) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto x =
        distribute_tensor(distinct({20000}), mesh, {Shard(0)}, std::nullopt);
    const CommDebugMode comm;
    at::median(x, 0);
    EXPECT_LT(comm.total().wire_bytes, 20000);
    EXPECT_GT(comm.get_total_counts(), 0);
  });
}

// Checks the median of all elements and its gradient, which is divided among
// equal elements.
void expect_plain_median(
    const at::Tensor& whole,
    const DeviceMesh& mesh,
    const Placements& layout) {
  for (const bool skips_nan : {false, true}) {
    auto x = distribute_tensor(whole, mesh, layout, std::nullopt);
    auto plain = whole.clone();
    const bool differentiable = whole.is_floating_point();
    x.set_requires_grad(differentiable);
    plain.set_requires_grad(differentiable);
    const CommDebugMode comm;
    const auto value = skips_nan ? at::nanmedian(x) : at::median(x);
    EXPECT_EQ(comm.total({.kind = CollectiveKind::kAllGather}).count, 2);
    EXPECT_EQ(comm.total({.kind = CollectiveKind::kAllReduce}).count, 3);
    EXPECT_EQ(comm.get_total_counts(), 5);
    const auto truth = skips_nan ? at::nanmedian(plain) : at::median(plain);
    EXPECT_TRUE(is_equal(full_tensor(value).detach(), truth.detach()));
    EXPECT_TRUE(DTensor(value).spec()->is_replicated());
    if (differentiable) {
      value.backward();
      truth.backward();
      EXPECT_TRUE(is_equal(full_tensor(x.grad()), plain.grad()));
    }
  }
}

TEST(Selection, FindsTheMedianOfAllElements) {
  const std::vector<at::Tensor> operands{
      spread({101, 200}, at::kDouble, false),
      spread({200, 101}, at::kFloat, true).t(),
      spread({101, 200}, at::kLong, false),
      drawn({101, 200}, at::kDouble, 1),
      drawn({101, 200}, at::kInt, 2),
      drawn({101, 200}, at::kFloat, 3).abs().nan_to_num(),
      at::full({101, 200}, std::nan(""), at::kDouble)};
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    for (const auto& whole : operands) {
      expect_plain_median(whole, mesh, {Shard(0)});
      expect_plain_median(whole, mesh, {Shard(1)});
    }
    expect_plain_median(
        spread({2, 9000}, at::kDouble, false), mesh, {Shard(0)});
  });
  run_ranks(4, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    expect_plain_median(operands[0], mesh, {Shard(1), Replicate()});
    expect_plain_median(operands[0], mesh, {Replicate(), Shard(0)});
    // If two mesh dimensions shard the tensor, the shards are gathered.
    const auto x = distribute_tensor(
        operands[0], mesh, {Shard(0), Shard(1)}, std::nullopt);
    EXPECT_TRUE(at::equal(full_tensor(at::median(x)), operands[0].median()));
  });
}

TEST(Selection, MovesFewerBytesThanGatheringForTheMedianOfAll) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto x =
        distribute_tensor(distinct({100, 200}), mesh, {Shard(1)}, std::nullopt);
    const CommDebugMode comm;
    at::median(x);
    EXPECT_LT(comm.total().wire_bytes, 20000);
    const CommDebugMode without;
    at::median(
        distribute_tensor(distinct({8}), mesh, {Shard(0)}, std::nullopt));
    EXPECT_EQ(without.get_total_counts(), 1); // gathered
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
