// SPDX-License-Identifier: BSD-3-Clause
// The spec of a result has the dtype of the local results, which is the dtype
// of the plain operator. Partial terms are converted only if the conversion
// commutes with the reduction.
#include "same_or_error.h"

#include <ATen/core/Reduction.h>

namespace dtensor::testing {
namespace TEST_SOURCE {

const Placements kMatrix = {Replicate(), Shard(0), Shard(1)};
const Placements kWithSum = {Replicate(), Shard(0), Shard(1), Partial()};

at::Tensor floats(at::IntArrayRef sizes, uint64_t seed) {
  return uniform(sizes, seed).to(at::kFloat);
}

TEST(Dtypes, LogsumexpOfIntegersIsFloatingPoint) {
  expect_same({small_ints({5, 3}, 1)}, {kMatrix}, [](const Tensors& t) {
    return at::logsumexp(t[0], {0});
  });
}

TEST(Dtypes, FunctionsOfIntegersAreFloatingPoint) {
  const auto x = small_ints({5, 3}, 1) + 3;
  expect_same(
      {x}, {kMatrix}, [](const Tensors& t) { return at::mvlgamma(t[0], 3); });
  expect_same({x, x > 6}, {kWithSum, kMatrix}, [](const Tensors& t) {
    return at::native_dropout_backward(t[0], t[1], 2);
  });
}

TEST(Dtypes, LossesOfTwoDtypes) {
  const Tensors operands{floats({5, 3}, 1), uniform({5, 3}, 2)};
  using Loss =
      at::Tensor (*)(const at::Tensor&, const at::Tensor&, int64_t reduction);
  const std::vector<std::pair<std::string, Loss>> losses = {
      {"huber",
       [](const at::Tensor& x, const at::Tensor& y, int64_t reduction) {
         return at::huber_loss(x, y, reduction, 0.3);
       }},
      {"mse",
       [](const at::Tensor& x, const at::Tensor& y, int64_t reduction) {
         return at::mse_loss(x, y, reduction);
       }},
      {"smooth_l1",
       [](const at::Tensor& x, const at::Tensor& y, int64_t reduction) {
         return at::smooth_l1_loss(x, y, reduction);
       }},
      {"soft_margin",
       [](const at::Tensor& x, const at::Tensor& y, int64_t reduction) {
         return at::soft_margin_loss(x, y, reduction);
       }},
      {"bce_with_logits",
       [](const at::Tensor& x, const at::Tensor& y, int64_t reduction) {
         return at::binary_cross_entropy_with_logits(x, y, {}, {}, reduction);
       }},
  };
  for (const auto& entry : losses) {
    const auto& name = entry.first;
    const auto& loss = entry.second;
    for (const auto reduction :
         {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
      for (const auto& pair : {operands, Tensors{operands[1], operands[0]}}) {
        expect_same(
            pair,
            {{Replicate(), Shard(0)}, {Shard(0), Shard(1)}},
            [&](const Tensors& t) { return loss(t[0], t[1], reduction); },
            c10::str(name, " ", reduction));
      }
    }
  }
}

TEST(Dtypes, AMarginIsRoundedToTheDtypeOfTheOperand) {
  const auto sides = at::where(uniform({5, 3}, 2) > 0.5, 1, -1);
  const std::vector<std::pair<at::Tensor, double>> cases = {
      {small_ints({5, 3}, 1), 2.5},
      {small_ints({5, 3}, 1).to(at::kInt), 2.5},
      {floats({5, 3}, 1), 0.7},
      {floats({5, 3}, 1).to(at::kBFloat16), 0.7},
  };
  for (const auto& entry : cases) {
    const auto& operand = entry.first;
    const auto& margin = entry.second;
    for (const auto reduction : {at::Reduction::None, at::Reduction::Sum}) {
      if (reduction == at::Reduction::Sum &&
          operand.scalar_type() == at::kBFloat16) {
        continue; // ranks round sums of their shards
      }
      expect_same(
          {operand, sides},
          {kMatrix, kMatrix},
          [&](const Tensors& t) {
            return at::hinge_embedding_loss(t[0], t[1], margin, reduction);
          },
          c10::str("hinge of ", operand.scalar_type(), " ", reduction));
    }
  }
}

TEST(Dtypes, NumbersInDisguiseDecideNoDtype) {
  const Tensors operands{floats({5, 3}, 1)};
  const auto wrapped = [](double value) {
    auto t = at::scalar_tensor(value, at::kDouble);
    t.unsafeGetTensorImpl()->set_wrapped_number(true);
    return t;
  };
  using Unary = at::Tensor (*)(const at::Tensor& x, const at::Tensor& number);
  const std::vector<std::pair<std::string, Unary>> calls = {
      {"floor_divide",
       [](const at::Tensor& x, const at::Tensor& number) {
         return at::floor_divide(x, number);
       }},
      {"where",
       [](const at::Tensor& x, const at::Tensor& number) {
         return at::where(x > 0.5, x, number);
       }},
      {"where the other way round",
       [](const at::Tensor& x, const at::Tensor& number) {
         return at::where(x > 0.5, number, x);
       }},
      {"rsub",
       [](const at::Tensor& x, const at::Tensor& number) {
         return at::rsub(x, number);
       }},
      {"mul",
       [](const at::Tensor& x, const at::Tensor& number) {
         return x * number;
       }},
      {"remainder",
       [](const at::Tensor& x, const at::Tensor& number) {
         return at::remainder(x, number);
       }},
      {"logical_and",
       [](const at::Tensor& x, const at::Tensor& number) {
         return at::logical_and(x, number);
       }},
      {"add",
       [](const at::Tensor& x, const at::Tensor& number) {
         return x + number;
       }},
  };
  for (const auto& entry : calls) {
    const auto& name = entry.first;
    const auto& call = entry.second;
    for (const auto& x : {floats({5, 3}, 1), floats({}, 1)}) {
      const auto layouts =
          x.dim() == 0 ? Placements{Replicate(), Partial()} : kWithSum;
      expect_same(
          {x},
          {layouts},
          [&](const Tensors& t) { return call(t[0], wrapped(0.3)); },
          name);
    }
  }
}

TEST(Dtypes, FloorDivisionInPlaceKeepsTheDtype) {
  for (const auto& x : {floats({5, 3}, 1), small_ints({5, 3}, 2)}) {
    expect_same({x}, {kMatrix}, [](const Tensors& t) {
      return t[0].clone().floor_divide_(at::ones_like(t[0]) * 2);
    });
  }
}

// Half's greatest number is 65,504.
TEST(Dtypes, MeansOfHalvesDoNotOverflow) {
  const auto x = at::full({70000, 2}, 3, at::kHalf);
  using Mean = at::Tensor (*)(const at::Tensor& x);
  const std::vector<std::pair<std::string, Mean>> means = {
      {"mean", [](const at::Tensor& t) { return t.mean(); }},
      {"mean over rows", [](const at::Tensor& t) { return t.mean(0); }},
      {"mean of a dtype",
       [](const at::Tensor& t) { return t.to(at::kFloat).mean(at::kHalf); }},
      {"mse", [](const at::Tensor& t) { return at::mse_loss(t, t * 2); }},
      {"l1", [](const at::Tensor& t) { return at::l1_loss(t, t * 2); }},
      {"huber", [](const at::Tensor& t) { return at::huber_loss(t, t * 2); }},
      {"bce",
       [](const at::Tensor& t) {
         return at::binary_cross_entropy_with_logits(t, t / 3);
       }},
  };
  run_ranks(3, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {3});
    for (const auto& [name, mean] : means) {
      const auto expected = mean(x);
      for (const auto& p : {Placement(Replicate()), Placement(Shard(0))}) {
        const auto result = mean(distribute_tensor(x, mesh, {p}));
        EXPECT_EQ(result.scalar_type(), expected.scalar_type()) << name;
        EXPECT_TRUE(at::allclose(
            DTensor(result).full_tensor(), expected, /*rtol=*/2e-3))
            << name << " " << p << " " << DTensor(result).full_tensor();
      }
    }
  });
}

TEST(Dtypes, ATensorOfNoDimensionsDecidesAmongItsKind) {
  for (const auto& zero_dim :
       {at::scalar_tensor(0.25, at::kDouble),
        at::scalar_tensor(2, at::kLong)}) {
    expect_same(
        {floats({5, 3}, 1), zero_dim},
        {kWithSum, {Replicate()}},
        [](const Tensors& t) { return at::where(t[0] > 0.5, t[0], t[1]); });
    expect_same(
        {floats({5, 3}, 1), zero_dim},
        {kWithSum, {Replicate()}},
        [](const Tensors& t) { return at::floor_divide(t[0], t[1]); });
  }
}

TEST(Dtypes, TermsThatWrapAreAddedBeforeTheyAreWidened) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    // 100 + 100 is -56 in eight bits.
    const at::Tensor bytes =
        DTensor::from_local(at::full({2}, 100, at::kChar), mesh, {Partial()});
    const at::Tensor reals =
        DTensor::from_local(at::ones({2}), mesh, {Partial()});
    const std::vector<float> expected{-56, -56, 2, 2};
    EXPECT_TRUE(at::equal(
        full(at::cat({bytes, reals})), at::tensor(at::ArrayRef(expected))));
    EXPECT_TRUE(at::equal(
        full(at::stack({bytes, reals})).view({4}),
        at::tensor(at::ArrayRef(expected))));
    EXPECT_TRUE(DTensor(at::cat({reals, reals})).placements()[0].is_partial());
  });
}

// Reductions of unsigned integers fail exactly where LibTorch has no kernel for
// them.
TEST(Dtypes, ReductionsOfUnsignedIntegers) {
  using Call = at::Tensor (*)(const at::Tensor&);
  const std::vector<std::pair<std::string, Call>> calls = {
      {"sum", [](const at::Tensor& x) { return x.sum(); }},
      {"sum(0)", [](const at::Tensor& x) { return x.sum(0); }},
      {"prod", [](const at::Tensor& x) { return x.prod(); }},
      {"any", [](const at::Tensor& x) { return x.any(); }},
      {"all", [](const at::Tensor& x) { return x.all(0); }},
      {"amax", [](const at::Tensor& x) { return x.amax(0); }},
      {"max", [](const at::Tensor& x) { return x.max(); }},
      {"amin", [](const at::Tensor& x) { return x.amin(0); }},
      {"min", [](const at::Tensor& x) { return x.min(); }},
      {"argmax", [](const at::Tensor& x) { return x.argmax(0); }},
      {"max.dim", [](const at::Tensor& x) { return std::get<0>(x.max(0)); }},
      {"median", [](const at::Tensor& x) { return x.median(); }},
      {"mean", [](const at::Tensor& x) { return x.mean(); }},
      {"count_nonzero", [](const at::Tensor& x) { return x.count_nonzero(); }},
      {"cumsum", [](const at::Tensor& x) { return x.cumsum(0); }},
      {"sort", [](const at::Tensor& x) { return std::get<0>(x.sort(0)); }},
  };
  Failures failures;
  for (const auto dtype : {at::kUInt16, at::kUInt32, at::kUInt64}) {
    const auto plain = small_ints({5, 3}, 1).to(dtype);
    for (const auto& entry : calls) {
      const auto& name = entry.first;
      const auto& call = entry.second;
      at::Tensor truth;
      try {
        truth = call(plain);
      } catch (const c10::Error&) {
      }
      run_ranks(2, [&] {
        const auto mesh = init_device_mesh(at::kCPU, {2});
        for (const auto& p : {Replicate(), Shard(0), Shard(1)}) {
          const at::Tensor x =
              distribute_tensor(plain, mesh, {p}, std::nullopt);
          const auto where = c10::str(name, " ", dtype, " ", to_string(p));
          try {
            const auto mine = full(call(x));
            if (!truth.defined() || !at::equal(mine, truth)) {
              failures.add(where + ": differs");
            }
          } catch (const c10::Error& e) {
            const std::string text = e.what_without_backtrace();
            if (truth.defined() || text.rfind("[aten::", 0) != 0) {
              failures.add(where + ": " + text.substr(0, text.find('\n')));
            }
          }
        }
      });
    }
  }
  EXPECT_EQ(failures.text(), "");
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
