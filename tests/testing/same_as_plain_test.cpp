// SPDX-License-Identifier: BSD-3-Clause
// expect_same_as_plain() accepts correct functions and reports incorrect ones.
#include <dtensor/dtensor.h>
#include <dtensor/testing/expect.h>
#include <dtensor/testing/same_as_plain.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/error_of.h>
#include <torch/torch.h>

#include <atomic>

namespace dtensor {
namespace TEST_SOURCE {

using testing::expect_same_as_plain;
using ::testing::HasSubstr;
using testing::SameAsPlainOptions;
using testing::seeded_randn;
using Tensors = std::vector<at::Tensor>;

at::Tensor variable(at::IntArrayRef sizes, uint64_t seed) {
  return seeded_randn(sizes, at::kDouble, seed).requires_grad_();
}

// Returns the error for a function that is wrong on DTensors.
std::string error_of_trial(
    const testing::TensorFunction& fn,
    const SameAsPlainOptions& options) {
  return test_text::error_of<c10::Error>([&] {
    expect_same_as_plain(fn, {variable({4, 3}, 1)}, options);
  });
}

SameAsPlainOptions rows_on_two() {
  SameAsPlainOptions options;
  options.meshes = {{2}};
  options.placements = {{Shard(0)}};
  return options;
}

TEST(SameAsPlain, PassesWhatIsRight) {
  expect_same_as_plain(
      [](const Tensors& x) { return Tensors{at::mm(x[0], x[1])}; },
      {variable({5, 3}, 1), variable({3, 4}, 2)});
  // One of several results has no gradient.
  expect_same_as_plain(
      [](const Tensors& x) {
        const auto [values, indices] = x[0].sort(1);
        return Tensors{values, indices, at::Tensor()};
      },
      {variable({5, 3}, 1)});
  expect_same_as_plain(
      [](const Tensors& x) { return Tensors{x[0] + x[1]}; },
      {torch::arange(12).view({4, 3}), torch::arange(3)});
}

TEST(SameAsPlain, NamesAValueThatDiffers) {
  const auto wrong = [](const Tensors& x) {
    const bool is_cut =
        is_dtensor(x[0]) && DTensor(x[0]).placements()[0] == Shard(0);
    return Tensors{x[0] * 1, is_cut ? x[0] + 1 : x[0] + 0};
  };
  EXPECT_EQ(
      error_of_trial(wrong, rows_on_two()),
      "[run_ranks] 2 of 2 ranks failed. every rank: [expect_same_as_plain] on "
      "a "
      "mesh of 2 in [S(0)]: [result 1] [expect_close] f64[4, 3] on (2): S(0) "
      "differs by up to 1.");
}

TEST(SameAsPlain, NamesAGradientThatDiffers) {
  const auto wrong = [](const Tensors& x) {
    return Tensors{is_dtensor(x[0]) ? x[0] * 3 - x[0].detach() * 2 : x[0] * 1};
  };
  EXPECT_THAT(
      error_of_trial(wrong, rows_on_two()),
      HasSubstr("in [S(0)]: [gradient 0] [expect_close] f64[4, 3]"));
  const auto none = [](const Tensors& x) {
    return Tensors{x[0] * 1, is_dtensor(x[0]) ? x[0].detach() : x[0]};
  };
  EXPECT_THAT(
      error_of_trial(none, rows_on_two()),
      HasSubstr("in [S(0)]: [gradient 0] [expect_close] f64[4, 3]"));
}

TEST(SameAsPlain, ChecksWithoutAutogradToo) {
  const auto when = [](auto condition) {
    return [=](const Tensors& x) {
      const bool errs = is_dtensor(x[0]) && condition();
      return Tensors{errs ? x[0] + 1 : x[0] + 0};
    };
  };
  EXPECT_THAT(
      error_of_trial(
          when([] {
            return !at::GradMode::is_enabled() &&
                !c10::InferenceMode::is_enabled();
          }),
          rows_on_two()),
      HasSubstr("[without autograd, result 0] [expect_close]"));
  EXPECT_THAT(
      error_of_trial(
          when([] { return c10::InferenceMode::is_enabled(); }), rows_on_two()),
      HasSubstr("[in inference mode, result 0] [expect_close]"));
}

TEST(SameAsPlain, NamesMissingAndExtraResults) {
  const auto fewer = [](const Tensors& x) {
    return is_dtensor(x[0]) ? Tensors{x[0]} : Tensors{x[0], x[0]};
  };
  EXPECT_THAT(
      error_of_trial(fewer, rows_on_two()),
      HasSubstr("[result] got 1 tensor, expected 2."));
  const auto undefined = [](const Tensors& x) {
    return Tensors{is_dtensor(x[0]) ? at::Tensor() : x[0]};
  };
  EXPECT_THAT(
      error_of_trial(undefined, rows_on_two()),
      HasSubstr("[result 0] is undefined."));
}

TEST(SameAsPlain, NamesTheLayoutThatAnOperatorRefuses) {
  const auto refuses = [](const Tensors& x) {
    return Tensors{at::_pdist_forward(x[0])};
  };
  SameAsPlainOptions options = rows_on_two();
  EXPECT_THAT(
      test_text::error_of<c10::Error>([&] {
        expect_same_as_plain(refuses, {variable({3, 3}, 1).detach()}, options);
      }),
      HasSubstr("on a mesh of 2 in [S(0)]: [aten::_pdist_forward] "));
  options.placements = {{Replicate()}, {Replicate()}};
  EXPECT_EQ(
      error_of_trial(refuses, options),
      "[expect_same_as_plain] got placements for 2 operands, but there are 1. "
      "Pass placements for each operand, or for none.");
}

// If there are few combinations, all are tried once. Otherwise the requested
// number of combinations is tried.
TEST(SameAsPlain, TriesAsManyLayoutsAsWanted) {
  std::atomic<int> calls{0};
  const auto count = [&](const Tensors& x) {
    ++calls;
    return Tensors{x[0] + x[1]};
  };
  const auto calls_with = [&](SameAsPlainOptions options) {
    calls = 0;
    expect_same_as_plain(count, {variable({4}, 1), variable({4}, 2)}, options);
    return calls.load();
  };
  SameAsPlainOptions options;
  options.meshes = {{1, 1}};
  options.placements = {{Replicate(), Shard(0)}, {Replicate(), Shard(0)}};
  EXPECT_EQ(calls_with(options), 1 + 3 * 16);
  options.layouts = 5;
  EXPECT_EQ(calls_with(options), 1 + 3 * 5);
}

TEST(InLayout, HoldsTheFullTensorInAnyLayout) {
  run_ranks(4, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2, 2});
    const auto whole = seeded_randn({5, 3}, at::kDouble, 1);
    for (const Placements& layout : std::vector<Placements>{
             {Replicate(), Replicate()},
             {Shard(0), Shard(0)},
             {Shard(1), Partial()},
             {Partial(), Partial()}}) {
      const auto t = testing::in_layout(whole, mesh, layout);
      EXPECT_EQ(DTensor(t).placements(), PlacementsRef(layout));
      testing::expect_close(t, whole);
    }
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
