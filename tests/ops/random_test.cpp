// SPDX-License-Identifier: BSD-3-Clause
// Random operators draw the same numbers in every layout, from the correct
// distribution.
#include <dtensor/random/philox_impl.h>
#include <dtensor/random/random.h>

#include "oracle.h"

#include <tests/ops/against_plain.h>

#include <tests/error_of.h>

#include <ATen/core/PhiloxRNGEngine.h>

namespace dtensor {
namespace TEST_SOURCE {

using test_text::error_of;

using namespace dtensor::testing;

using Fill = std::function<void(at::Tensor&)>;

struct Distribution {
  std::string name;
  Fill fill;
};

std::vector<Distribution> distributions() {
  return {
      {"uniform_", [](at::Tensor& t) { t.uniform_(-1, 2); }},
      {"normal_", [](at::Tensor& t) { t.normal_(1, 2); }},
      {"log_normal_", [](at::Tensor& t) { t.log_normal_(0, 0.5); }},
      {"exponential_", [](at::Tensor& t) { t.exponential_(2); }},
      {"cauchy_", [](at::Tensor& t) { t.cauchy_(); }},
      {"geometric_", [](at::Tensor& t) { t.geometric_(0.3); }},
      {"bernoulli_", [](at::Tensor& t) { t.bernoulli_(0.4); }},
      {"random_", [](at::Tensor& t) { t.random_(); }},
      {"random_.to", [](at::Tensor& t) { t.random_(7); }},
      {"random_.from", [](at::Tensor& t) { t.random_(-3, 4); }},
  };
}

// Returns all layouts of a tensor of `ndim` dimensions without Partial.
std::vector<Placements> all_layouts(int64_t ndim, const DeviceMesh& mesh) {
  Placements kinds{Replicate()};
  for (int64_t d = 0; d < ndim; ++d) {
    kinds.push_back(Shard(d));
    kinds.push_back(StridedShard(d, 2));
  }
  return against_plain::combinations(kinds, static_cast<size_t>(mesh.ndim()));
}

at::Tensor zeros_in(
    at::IntArrayRef sizes,
    const DeviceMesh& mesh,
    const Placements& layout,
    at::ScalarType dtype) {
  return distribute_tensor(at::zeros(sizes, dtype), mesh, layout, std::nullopt);
}

// Returns the numbers that a single rank draws.
at::Tensor
alone(at::IntArrayRef sizes, at::ScalarType dtype, const Fill& fill) {
  const auto mesh = init_device_mesh(at::kCPU, {1});
  manual_seed(42);
  auto t = zeros_in(sizes, mesh, {Replicate()}, dtype);
  fill(t);
  return full(t);
}

TEST(PhiloxTest, HasTheWordsOfLibTorch) {
  const uint64_t seed = 0x123456789ABCDEF0;
  const uint64_t stream = 0x0FEDCBA987654321;
  for (const uint64_t block : {0ull, 1ull, 77ull, 1ull << 33}) {
    at::Philox4_32 engine(seed, stream, block);
    const auto words = detail::philox(seed, stream, block);
    for (const auto word : words) {
      EXPECT_EQ(word, engine());
    }
  }
}

TEST(RandomTest, DoesNotDependOnTheLayout) {
  const std::vector<std::vector<int64_t>> meshes = {{1}, {2}, {3}, {2, 2}, {8}};
  for (const auto& sizes : {std::vector<int64_t>{5, 3, 2}, {1, 7}, {}}) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const auto& d : distributions()) {
        const auto truth = alone(sizes, dtype, d.fill);
        Failures failures;
        for (const auto& shape : meshes) {
          const auto ranks = shape.size() == 2 ? 4 : shape[0];
          run_ranks(ranks, [&] {
            const auto mesh = init_device_mesh(at::kCPU, shape);
            const auto ndim = static_cast<int64_t>(sizes.size());
            for (const auto& layout : all_layouts(ndim, mesh)) {
              manual_seed(42);
              auto t = zeros_in(sizes, mesh, layout, dtype);
              d.fill(t);
              if (!at::equal(full(t), truth)) {
                failures.add(d.name + " " + to_string(*DTensor(t).spec()));
              }
            }
          });
        }
        EXPECT_EQ(failures.text(), "");
      }
    }
  }
}

TEST(RandomTest, FactoriesAndLikesDrawTheSame) {
  const auto truth =
      alone({5, 3}, at::kFloat, [](at::Tensor& t) { t.uniform_(); });
  const auto normal =
      alone({5, 3}, at::kFloat, [](at::Tensor& t) { t.normal_(); });
  const auto ints =
      alone({5, 3}, at::kFloat, [](at::Tensor& t) { t.random_(2, 9); });
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto like = zeros_in({5, 3}, mesh, {Shard(1)}, at::kFloat);
    manual_seed(42);
    EXPECT_TRUE(at::equal(full_tensor(rand({5, 3}, mesh, {Shard(0)})), truth));
    manual_seed(42);
    EXPECT_TRUE(at::equal(full(at::rand_like(like)), truth));
    manual_seed(42);
    EXPECT_TRUE(at::equal(full_tensor(randn({5, 3}, mesh)), normal));
    manual_seed(42);
    EXPECT_TRUE(at::equal(full(at::randn_like(like)), normal));
    manual_seed(42);
    EXPECT_TRUE(at::equal(full(at::randint_like(like, 2, 9)), ints));
    manual_seed(42);
    const auto wide = at::rand_like(like, at::kDouble);
    EXPECT_EQ(wide.scalar_type(), at::kDouble);
    EXPECT_TRUE(DTensor(wide).placements()[0] == Shard(1));
  });
}

TEST(RandomTest, TensorsOfProbabilities) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    const auto p = uniform({5, 4}, 3);
    at::Tensor first;
    for (const auto& layout :
         {Replicate(), Shard(0), Shard(1), Partial(ReduceOp::kSum)}) {
      const auto spread_p = in_layout(p, mesh, {layout});
      manual_seed(1);
      const auto a = full(at::bernoulli(spread_p));
      manual_seed(1);
      auto b = zeros_in({5, 4}, mesh, {Shard(1)}, at::kDouble);
      b.bernoulli_(spread_p);
      EXPECT_TRUE(at::equal(a, full(b)));
      first = first.defined() ? first : a;
      EXPECT_TRUE(at::equal(a, first));
      manual_seed(1);
      const auto c = at::multinomial(spread_p, 3);
      EXPECT_EQ(c.sizes(), at::IntArrayRef({5, 3}));
      manual_seed(1);
      EXPECT_TRUE(at::equal(full(c), full(at::multinomial(spread_p, 3))));
    }
    auto sure = zeros_in({5, 4}, mesh, {Shard(0)}, at::kFloat);
    EXPECT_TRUE(full(sure.bernoulli_(1.0)).eq(1).all().item<bool>());
    EXPECT_TRUE(full(sure.bernoulli_(0.0)).eq(0).all().item<bool>());
  });
}

TEST(RandomTest, HasTheRightMoments) {
  const auto mesh = init_device_mesh(at::kCPU, {1});
  const auto moments = [&](const Fill& fill, at::ScalarType dtype) {
    auto t = zeros_in({1000, 1000}, mesh, {Replicate()}, dtype);
    fill(t);
    const auto x = full(t).to(at::kDouble);
    return std::pair(x.mean().item<double>(), x.var().item<double>());
  };
  manual_seed(3);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto [um, uv] = moments([](auto& t) { t.uniform_(2, 4); }, dtype);
    EXPECT_NEAR(um, 3, 5e-3);
    EXPECT_NEAR(uv, 4.0 / 12, 5e-3);
    const auto [nm, nv] = moments([](auto& t) { t.normal_(1, 3); }, dtype);
    EXPECT_NEAR(nm, 1, 2e-2);
    EXPECT_NEAR(nv, 9, 1e-1);
    const auto [em, ev] = moments([](auto& t) { t.exponential_(2); }, dtype);
    EXPECT_NEAR(em, 0.5, 5e-3);
    EXPECT_NEAR(ev, 0.25, 5e-3);
    const auto [bm, bv] = moments([](auto& t) { t.bernoulli_(0.3); }, dtype);
    EXPECT_NEAR(bm, 0.3, 3e-3);
    EXPECT_NEAR(bv, 0.21, 3e-3);
    const auto [gm, gv] = moments([](auto& t) { t.geometric_(0.25); }, dtype);
    EXPECT_NEAR(gm, 4, 3e-2);
    EXPECT_NEAR(gv, 12, 3e-1);
    const auto [lm, lv] =
        moments([](auto& t) { t.log_normal_(0, 0.5); }, dtype);
    EXPECT_NEAR(lm, std::exp(0.125), 5e-3);
    EXPECT_NEAR(lv, (std::exp(0.25) - 1) * std::exp(0.25), 1e-2);
    const auto [rm, rv] = moments([](auto& t) { t.random_(0, 10); }, dtype);
    EXPECT_NEAR(rm, 4.5, 2e-2);
    EXPECT_NEAR(rv, 8.25, 5e-2);
  }
}

double correlation(const at::Tensor& a, const at::Tensor& b) {
  return ((a - a.mean()) * (b - b.mean())).mean().item<double>() /
      (a.std() * b.std()).item<double>();
}

TEST(RandomTest, DrawsAndNeighboursAreIndependent) {
  const auto mesh = init_device_mesh(at::kCPU, {1});
  manual_seed(5);
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    const auto a = full(randn({1000000}, mesh, {}, {dtype})).to(at::kDouble);
    const auto b = full(randn({1000000}, mesh, {}, {dtype})).to(at::kDouble);
    EXPECT_NEAR(correlation(a, b), 0, 5e-3);
    for (const auto lag : {1, 2, 3, 4}) {
      EXPECT_NEAR(correlation(a.slice(0, lag), a.slice(0, 0, -lag)), 0, 5e-3);
      EXPECT_NEAR(
          correlation(a.square().slice(0, lag), a.square().slice(0, 0, -lag)),
          0,
          5e-3);
    }
  }
}

TEST(RandomTest, HalfPrecisionStaysBelowTheUpperBound) {
  const auto mesh = init_device_mesh(at::kCPU, {1});
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const auto x = full(rand({100000}, mesh, {}, {dtype})).to(at::kDouble);
    EXPECT_LT(x.max().item<double>(), 1);
    EXPECT_GE(x.min().item<double>(), 0);
  }
}

TEST(RandomTest, SeedsOfTheCallerAndOfLibTorchCount) {
  torch::manual_seed(11);
  at::Tensor seeded;
  for (const auto ranks : {1, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      const auto a = full_tensor(rand({7}, mesh, {Shard(0)}));
      const auto b = full_tensor(rand({7}, mesh, {Shard(0)}));
      EXPECT_FALSE(at::equal(a, b));
      torch::manual_seed(11);
      EXPECT_TRUE(at::equal(a, full_tensor(rand({7}, mesh))));
      manual_seed(12);
      EXPECT_FALSE(at::equal(a, full_tensor(rand({7}, mesh))));
      manual_seed(11);
      EXPECT_TRUE(at::equal(a, full_tensor(rand({7}, mesh))));
      if (get_rank() == 0) {
        EXPECT_TRUE(!seeded.defined() || at::equal(seeded, a));
        seeded = a;
      }
    });
  }
}

TEST(RandomTest, RanksOutsideTheMeshKeepPace) {
  run_ranks(3, [] {
    const auto small = init_device_mesh(at::kCPU, {2});
    const auto whole = init_device_mesh(at::kCPU, {3});
    manual_seed(4);
    auto t = rand({4}, small, {Shard(0)});
    t.uniform_();
    at::dropout(t, 0.5, true);
    const auto after = full_tensor(rand({5}, whole, {Shard(0)}));
    manual_seed(4);
    for (int i = 0; i < 3; ++i) {
      rand({4}, whole);
    }
    EXPECT_TRUE(at::equal(after, full_tensor(rand({5}, whole))));
  });
}

TEST(RandomTest, RefusesWhatItCannotDo) {
  const auto mesh = init_device_mesh(at::kCPU, {1});
  auto partial =
      DTensor::from_local(at::zeros({2}), mesh, {Partial(ReduceOp::kSum)});
  EXPECT_EQ(
      error_of([&] { partial.uniform_(); }),
      "[aten::uniform_] cannot fill f32[2] on (1): P(sum) with random values: "
      "they would be reduced over ranks. Redistribute it to Shard or Replicate "
      "first.");
  auto t = rand({2}, mesh);
  EXPECT_EQ(
      error_of([&] { t.normal_(0, 1, at::detail::createCPUGenerator(1)); }),
      "[aten::normal_] a generator was given, but a DTensor draws by global "
      "index from the stream of its rank. Leave the generator out, and seed "
      "that stream: dtensor::manual_seed() in C++, torch.manual_seed() in "
      "Python.");
  EXPECT_EQ(
      error_of([&] { t.normal_(0, -1); }),
      "[aten::normal_] needs std >= 0, got mean = 0 and std = -1. Pass values "
      "in this range.");
  EXPECT_EQ(
      error_of([&] { t.bernoulli_(1.5); }),
      "[aten::bernoulli_.float] p must be a probability, got 1.5. Pass one "
      "from 0 to 1.");
  EXPECT_EQ(
      error_of([&] { t.bernoulli_(at::full({1}, 1.5)); }),
      "[aten::bernoulli_.Tensor] p must hold probabilities. Pass values from 0 "
      "to 1.");
  auto small = zeros({2}, mesh, {}, {.dtype = at::kChar});
  EXPECT_EQ(
      error_of([&] { small.random_(200, std::optional<int64_t>()); }),
      "[aten::random_.from] from is 200, but the greatest value of i8 is 127. "
      "Pass a smaller from.");
  EXPECT_EQ(
      error_of(
          [&] { t.random_((int64_t{1} << 24) + 1, std::optional<int64_t>()); }),
      "[aten::random_.from] from is 16777217, but the greatest value of f32 is "
      "16777216. Pass a smaller from.");
  EXPECT_EQ(
      error_of([&] { rand({2}, mesh, {Partial(ReduceOp::kSum)}); }),
      "[rand] random values cannot be Partial: f32[2] on (1): P(sum). Use "
      "Shard or Replicate.");
}

// Plain tensors refuse the same bounds.
TEST(RandomTest, RefusesBoundsThatTheDtypeCannotHold) {
  struct Case {
    at::ScalarType dtype;
    double from;
    double to;
    bool is_valid;
  };
  const auto mesh = init_device_mesh(at::kCPU, {1});
  const auto inf = std::numeric_limits<double>::infinity();
  const double most = std::numeric_limits<float>::max();
  for (const auto& c : std::vector<Case>{
           {at::kFloat, -3e38, 3e38, false},
           {at::kFloat, 0, 1e39, false},
           {at::kFloat, -inf, 0, false},
           {at::kFloat, 0, std::nan(""), false},
           {at::kFloat, 2, 1, false},
           {at::kFloat, 0, most, true},
           {at::kHalf, 0, 1e5, false},
           {at::kHalf, -65504, 65504, false},
           {at::kHalf, -65504, 0, true},
           {at::kBFloat16, 0, 3.4e38, false},
           {at::kDouble, -1e308, 1e308, false},
           {at::kDouble, -3e38, 3e38, true}}) {
    const auto plain = at::zeros({8}, c.dtype);
    for (const auto& t : {plain, at::Tensor(zeros({8}, mesh, {}, {c.dtype}))}) {
      const auto error = error_of([&] { t.uniform_(c.from, c.to); });
      EXPECT_EQ(error == "nothing was thrown", c.is_valid)
          << c.dtype << " " << c.from << " " << c.to << ": " << error;
      EXPECT_TRUE(full(t).isfinite().all().item<bool>());
    }
  }
  auto half = zeros({2}, mesh, {}, {.dtype = at::kHalf});
  EXPECT_EQ(
      error_of([&] { half.uniform_(0, 1e5); }),
      "[aten::uniform_] needs from <= to, and from, to and to - from in the "
      "range of f16 (up to 65504), got from = 0 and to = 100000. Pass values "
      "in this range.");
}

} // namespace TEST_SOURCE
} // namespace dtensor
