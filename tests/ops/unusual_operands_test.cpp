// SPDX-License-Identifier: BSD-3-Clause
// Valid calls with operands that few programs have: without elements, of rare
// dtypes, with fewer rows than ranks, or beside plain numbers.
#include "same_or_error.h"

#include <ATen/core/Reduction.h>
#include <c10/util/ScopeExit.h>
#include <gmock/gmock.h>

#include <limits>

namespace dtensor::testing {
namespace TEST_SOURCE {

struct Call {
  std::string name;
  Tensors operands;
  std::vector<Placements> choices;
  Compute fn;
};

const Placements kRows = {Replicate(), Shard(0)};
const Placements kMatrix = {Replicate(), Shard(0), Shard(1)};

void check(const std::vector<Call>& calls) {
  for (const auto& call : calls) {
    expect_same(call.operands, call.choices, call.fn, call.name);
  }
}

// Returns the gradient of the first operand of `loss`.
at::Tensor gradient(
    const Tensors& t,
    const std::function<at::Tensor(const Tensors&)>& loss) {
  Tensors operands = t;
  operands[0] = t[0].detach().requires_grad_();
  return torch::autograd::grad({loss(operands).sum()}, {operands[0]})[0];
}

TEST(UnusualOperands, WithoutElements) {
  const auto none = at::zeros({0, 3}, at::kDouble);
  const auto far = at::full({2}, 7, at::kLong);
  check(
      {{"mean of losses",
        {none, none},
        {kRows, kRows},
        [](const Tensors& t) { return at::mse_loss(t[0], t[1]); }},
       {"sum of losses",
        {none, none},
        {kRows, kRows},
        [](const Tensors& t) {
          return at::smooth_l1_loss(t[0], t[1], at::Reduction::Sum);
        }},
       {"norm of no channels",
        {at::zeros({0}, at::kDouble)},
        {kRows},
        [](const Tensors& t) {
          return at::batch_norm(t[0], {}, {}, {}, {}, true, 0.1, 1e-5, false);
        }},
       // Nothing is looked up, so no index is out of range.
       {"index", {none, far}, {kRows, {Replicate()}}, [](const Tensors& t) {
          return at::index(t[0], {std::nullopt, t[1]});
        }}});
}

TEST(UnusualOperands, OfEveryIntegerDtypeWithFewerRowsThanRanks) {
  for (const auto dtype :
       {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong}) {
    const auto signs = at::tensor({-1, 1, -1, -1, 1, 1}).view({2, 3});
    const auto x = dtype == at::kBool || dtype == at::kByte
        ? signs.gt(0).to(dtype)
        : (signs * 100).to(dtype);
    const std::string name = c10::toString(dtype);
    const auto all = [&](const Compute& fn) {
      check({{name, {x}, {kMatrix}, fn}});
    };
    all([](const Tensors& t) { return t[0].amax(0); });
    all([](const Tensors& t) { return t[0].amin(0); });
    all([](const Tensors& t) { return t[0].max(); });
    all([](const Tensors& t) { return t[0].min(); });
    all([](const Tensors& t) { return std::get<0>(t[0].aminmax(0)); });
    all([](const Tensors& t) { return std::get<1>(t[0].aminmax(0)); });
    all([](const Tensors& t) { return t[0].sum({0}, false, at::kFloat); });
    all([](const Tensors& t) { return t[0].prod(0, false, at::kDouble); });
    all([](const Tensors& t) {
      return at::nansum(t[0], at::IntArrayRef{0}, false, at::kDouble);
    });
  }
}

TEST(UnusualOperands, OfRareDtypes) {
  const auto x = small_ints({4, 6}, 1);
  check(
      {{"uint16",
        {x.to(at::kUInt16)},
        {kMatrix},
        [](const Tensors& t) { return t[0].select(1, 5); }},
       {"integers",
        {x},
        {{Partial(ReduceOp::kMax), Partial(ReduceOp::kMin)}},
        [](const Tensors& t) { return t[0].relu(); }},
       {"bits", {x.to(at::kDouble)}, {kMatrix}, [](const Tensors& t) {
          // The numbers differ in the imaginary part alone.
          const auto y = at::mul(t[0], c10::complex<double>(2, 1)) +
              at::mul(t[0], c10::complex<double>(2, 3));
          return at::view_as_real(at::add(y, c10::complex<double>(0, 1)));
        }}});
}

TEST(UnusualOperands, BesidePlainNumbers) {
  const auto x = uniform({4, 3}, 1);
  check(
      {{"mean",
        {x},
        {kMatrix},
        [](const Tensors& t) {
          return at::normal(t[0], at::zeros({}, at::kDouble));
        }},
       {"deviation",
        {x * 0},
        {kMatrix},
        [](const Tensors& t) {
          return at::normal(at::full({1}, 3.0, at::kDouble), t[0]);
        }},
       {"index beside a mask",
        {x, x.select(1, 0).gt(0.3)},
        {kMatrix, kRows},
        [](const Tensors& t) {
          return at::index(t[0], {t[1], at::full({1}, 2, at::kLong)});
        }},
       {"positions", {x}, {kMatrix}, [](const Tensors& t) {
          return at::tensor_split(t[0], at::tensor({1, 3}, at::kLong), 0)[1]
              .clone();
        }}});
}

TEST(UnusualOperands, ThatAreBroadcast) {
  const auto x = uniform({4, 3}, 1);
  const auto row = uniform({3}, 2);
  const auto p = at::tensor({0.0, 1.0, 1.0}, at::kDouble);
  check(
      {{"probabilities",
        {x, p},
        {kMatrix, kRows},
        [](const Tensors& t) { return t[0].clone().bernoulli_(t[1]); }},
       {"loss",
        {row, x},
        {kRows, kMatrix},
        [](const Tensors& t) { return at::smooth_l1_loss(t[0], t[1]); }},
       {"gradient of a loss",
        {row, x},
        {kRows, kMatrix},
        [](const Tensors& t) {
          return gradient(
              t, [](const Tensors& u) { return at::mse_loss(u[0], u[1]); });
        }},
       {"one row",
        {x, at::full({1}, 2, at::kLong), row.view({1, 3})},
        {kMatrix, kRows, kMatrix},
        [](const Tensors& t) {
          return at::index_put(t[0], {t[1]}, t[2], /*accumulate=*/true);
        }},
       // LibTorch ignores pivots that are not unpacked.
       {"pivots",
        {uniform({2, 3, 3}, 3), at::ones({5, 3}, at::kInt)},
        {{Replicate(), Shard(0), Shard(1)}, kRows},
        [](const Tensors& t) {
          return std::get<1>(at::lu_unpack(t[0], t[1], true, false));
        }}});
}

TEST(UnusualOperands, GradientsOfLossesOfFewOrSingleSamples) {
  const auto scores = uniform({2, 3}, 1);
  const auto classes = at::tensor({2, 0}, at::kLong);
  const auto labels = at::tensor({2, -1, -1, 0, 1, -1}, at::kLong).view({2, 3});
  const auto multi = [](const Tensors& t) {
    return gradient(
        t, [](const Tensors& u) { return at::multi_margin_loss(u[0], u[1]); });
  };
  const auto multilabel = [](const Tensors& t) {
    return gradient(t, [](const Tensors& u) {
      return at::multilabel_margin_loss(u[0], u[1]);
    });
  };
  const auto ctc = [](const Tensors& t) {
    return gradient(t, [](const Tensors& u) {
      return at::ctc_loss(
          u[0].log_softmax(-1), u[1], at::IntArrayRef{5}, at::IntArrayRef{2});
    });
  };
  check(
      {{"multi_margin", {scores, classes}, {kMatrix, kRows}, multi},
       {"multilabel_margin", {scores, labels}, {kMatrix, kRows}, multilabel},
       {"one sample", {scores[0], classes[0]}, {kRows, {Replicate()}}, multi},
       {"labels of one sample",
        {scores[0], labels[0]},
        {kRows, kRows},
        multilabel},
       {"probabilities of one sample",
        {scores.narrow(0, 0, 1), uniform({1, 3}, 4)},
        {kMatrix, kMatrix},
        [](const Tensors& t) {
          return gradient(t, [](const Tensors& u) {
            return at::cross_entropy_loss(u[0], u[1], {}, at::Reduction::Sum);
          });
        }},
       {"one series",
        {uniform({5, 4}, 2), at::tensor({1, 3}, at::kLong)},
        {kMatrix, {Replicate()}},
        ctc}});
}

// Direct calls of the operator, with fewer samples than ranks.
TEST(UnusualOperands, GradientsOfAConvolutionOfFewSamples) {
  const Tensors operands = {
      uniform({2, 3, 5}, 1), uniform({2, 2, 6}, 2), uniform({3, 2, 2}, 3)};
  const auto backward = [](const Tensors& t, std::array<bool, 3> mask) {
    return at::convolution_backward(
        t[0],
        t[1],
        t[2],
        at::IntArrayRef{3},
        {1},
        {0},
        {1},
        false,
        {0},
        1,
        mask);
  };
  const std::vector<Placements> choices = {kRows, kRows, {Replicate()}};
  check(
      {{"input",
        operands,
        choices,
        [&](const Tensors& t) {
          return std::get<0>(backward(t, {true, true, true}));
        }},
       {"weight",
        operands,
        choices,
        [&](const Tensors& t) {
          return std::get<1>(backward(t, {false, true, false}));
        }},
       {"bias", operands, choices, [&](const Tensors& t) {
          return std::get<2>(backward(t, {false, false, true}));
        }}});
}

TEST(UnusualOperands, AttentionWithAScale) {
  const auto q = uniform({2, 4, 3, 2}, 1);
  const Placements heads = {Replicate(), Shard(0), Shard(1)};
  check(
      {{"attention",
        {q, uniform({2, 4, 5, 2}, 2), uniform({2, 4, 5, 2}, 3)},
        {heads, heads, heads},
        [](const Tensors& t) {
          return at::scaled_dot_product_attention(
              t[0], t[1], t[2], {}, 0, false, 0.3);
        }}});
}

TEST(UnusualOperands, ChannelsLastIsKeptByARoll) {
  const auto plain =
      uniform({2, 3, 2, 4, 2}, 1).contiguous(at::MemoryFormat::ChannelsLast3d);
  const auto expected = at::roll(plain, {1}, {3});
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& p : {Placement(Replicate()), Placement(Shard(3))}) {
      const auto rolled = at::roll(place(plain, mesh, p), {1}, {3});
      EXPECT_EQ(rolled.strides(), expected.strides());
      EXPECT_TRUE(at::equal(full(rolled), expected));
    }
  });
}

TEST(UnusualOperands, HalfPrecisionHasFewIntegers) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    auto x = place(at::zeros({4000}, at::kHalf), mesh, Shard(0));
    const auto drawn = full(x.random_()).to(at::kDouble);
    EXPECT_TRUE(at::equal(drawn, drawn.floor()));
    EXPECT_GE(drawn.min().item<double>(), 0);
    EXPECT_LE(drawn.max().item<double>(), 2048);
    EXPECT_GT(drawn.max().item<double>(), 1900);
  });
  EXPECT_EQ(
      error_on_ranks([](const DeviceMesh& mesh) {
        place(at::zeros({4}, at::kHalf), mesh, Shard(0))
            .random_(4096, std::optional<int64_t>());
      }),
      "[aten::random_.from] from is 4096, but the greatest value of f16 is "
      "2048. "
      "Pass a smaller from.");
}

TEST(UnusualOperands, ThatDoNotFitAreErrors) {
  using Fn = std::function<void(const DeviceMesh&)>;
  const std::vector<std::pair<Fn, std::string>> cases = {
      {[](const DeviceMesh& mesh) {
         at::multilabel_margin_loss(
             place(uniform({4, 3}, 1), mesh, Shard(0)),
             place(at::zeros({4, 2}, at::kLong), mesh, Shard(0)));
       },
       "[aten::multilabel_margin_loss_forward] needs scores of (samples, "
       "classes) or (classes) with a target for each score, got f64[4, 3] on "
       "(tp=2): S(0) and i64[4, 2] on (tp=2): S(0). Reshape them."},
      {[](const DeviceMesh& mesh) {
         at::ones({4, 3}).set_(place(at::ones({4, 3}), mesh, Shard(0)));
       },
       "[aten::set_.source_Tensor] got mixed plain tensor and DTensor: "
       "argument "
       "\"self\" is a plain f32[4, 3] next to f32[4, 3] on (tp=2): S(0). "},
  };
  for (const auto& [fn, text] : cases) {
    EXPECT_THAT(error_on_ranks(fn), ::testing::StartsWith(text));
  }
}

// As with plain tensors, a result must have the shape of self, and a dtype that
// converts to that of self. Nothing is written.
TEST(UnusualOperands, ResultsThatDoNotFitInPlaceAreErrors) {
  using InPlace = std::function<void(at::Tensor self, const at::Tensor& other)>;
  const std::vector<std::pair<std::string, InPlace>> operators = {
      {"add_", [](at::Tensor x, auto& y) { x.add_(y); }},
      {"mul_", [](at::Tensor x, auto& y) { x.mul_(y); }},
      {"lerp_", [](at::Tensor x, auto& y) { x.lerp_(y, 0.5); }},
      {"addcmul_", [](at::Tensor x, auto& y) { x.addcmul_(y, y); }},
      {"atan2_", [](at::Tensor x, auto& y) { x.atan2_(y); }},
      {"hypot_", [](at::Tensor x, auto& y) { x.hypot_(y); }},
      {"fmod_", [](at::Tensor x, auto& y) { x.fmod_(y); }},
      {"xlogy_", [](at::Tensor x, auto& y) { x.xlogy_(y); }},
      {"copysign_", [](at::Tensor x, auto& y) { x.copysign_(y); }},
      {"float_power_", [](at::Tensor x, auto& y) { x.float_power_(y); }}};
  const auto larger = uniform({2, 3}, 2);
  const std::vector<std::pair<at::Tensor, at::Tensor>> operands = {
      {uniform({3}, 1), larger}, {at::ones({2, 3}, at::kLong), larger}};
  for (const auto& entry : operators) {
    const auto& name = entry.first;
    const auto& write = entry.second;
    for (const auto& pair : operands) {
      const auto& self = pair.first;
      const auto& other = pair.second;
      SCOPED_TRACE(name);
      for (const bool records : {false, true}) {
        EXPECT_THROW(
            write(self.clone(), other.clone().requires_grad_(records)),
            std::exception);
        const auto text = error_on_ranks([&](const DeviceMesh& mesh) {
          auto mine = place(self, mesh, Replicate());
          const auto restore = c10::make_scope_exit(
              [&] { EXPECT_TRUE(at::equal(full(mine), self)); });
          write(
              mine,
              place(other, mesh, Replicate()).detach().requires_grad_(records));
        });
        EXPECT_NE(text, "nothing was thrown");
      }
    }
  }
}

// LibTorch may transform no elements, depending on its library.
TEST(UnusualOperands, TransformsOfNothingAreThoseOfLibTorch) {
  const auto none = at::zeros({0, 3}, at::kDouble);
  const auto plain = test_text::error_of([&] { at::fft_fft(none); });
  EXPECT_EQ(
      error_on_ranks([&](const DeviceMesh& mesh) {
        at::fft_fft(place(none, mesh, Shard(0)));
      }),
      plain.substr(0, plain.find('\n')));
}

// A view keeps the strided shards of the first dimension and would lose those
// of the second.
TEST(UnusualOperands, StridedShardsAreNamedByAView) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2}, {"dp", "tp"});
    const auto x = DTensor::from_local(
        at::ones({4, 3}), mesh, {StridedShard(0, 2), Shard(1)});
    EXPECT_EQ(
        test_text::error_of([&] {
          x.view({8, 3, 2});
        }),
        "[aten::view] cannot keep the sharding of f32[8, 6] on (dp=2, tp=2): "
        "SS(0, sf=2) S(1) as [8, 3, 2]: the shards of dim 1 on mesh dim "
        "\"tp\" do not correspond to shards of any dim of the new shape. "
        "Redistribute the input to [StridedShard(0, 2), Replicate()] first. If "
        "the dim contains heads, shard between heads: set `multiple_of` of "
        "ColwiseParallel to the features of a head.");
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
