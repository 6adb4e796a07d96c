// SPDX-License-Identifier: BSD-3-Clause
#include "oracle.h"

#include <ATen/core/Reduction.h>
#include <tests/error_of.h>

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::testing;
using test_text::error_of;

constexpr int64_t kReductions[] = {
    at::Reduction::None,
    at::Reduction::Mean,
    at::Reduction::Sum};

const Placements kScores = {
    Replicate(),
    Shard(0),
    Shard(1),
    Partial(ReduceOp::kSum)};
const Placements kSamples = {Replicate(), Shard(0)};
const Placements kEqual = {Replicate()};

at::Tensor labels(at::IntArrayRef sizes, int64_t count, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return at::randint(count, sizes, generator, at::kLong);
}

// --- margins ----------------------------------------------------------------

// The last of 3 shards of 4 samples is empty, as are shards of 1 sample.
TEST(MarginLossTest, SameAsPlain) {
  for (const auto reduction : kReductions) {
    for (const int64_t samples : {5, 4, 1}) {
      for (const bool weighted : {false, true}) {
        expect_same_as_plain(
            {c10::str("multi_margin ", reduction, " ", samples, weighted),
             {variable({samples, 3}, 1),
              labels({samples}, 3, 2),
              uniform({3}, 3)},
             {kScores, kSamples, kSamples},
             [=](const Tensors& t) {
               return at::multi_margin_loss(
                   t[0],
                   t[1],
                   /*p=*/weighted ? 2 : 1,
                   /*margin=*/0.7,
                   weighted ? std::optional(t[2]) : std::nullopt,
                   reduction);
             }},
            25);
      }
      auto target = labels({samples, 3}, 3, 2);
      target[0][1] = -1; // the end of the list
      expect_same_as_plain(
          {c10::str("multilabel_margin ", reduction, " ", samples),
           {variable({samples, 3}, 1), target},
           {kScores, {Replicate(), Shard(0), Shard(1)}},
           [=](const Tensors& t) {
             return at::multilabel_margin_loss(t[0], t[1], reduction);
           }});
    }
  }
}

TEST(MarginLossTest, OneSample) {
  for (const auto reduction : kReductions) {
    expect_same_as_plain(
        {"multi_margin",
         {variable({4}, 1), labels({1}, 4, 2)},
         {{Replicate(), Shard(0), Partial(ReduceOp::kSum)}, kSamples},
         [=](const Tensors& t) {
           return at::multi_margin_loss(t[0], t[1], 1, 1, {}, reduction);
         }});
    expect_same_as_plain(
        {"multilabel_margin",
         {variable({4}, 1), labels({4}, 4, 2)},
         {kSamples, kSamples},
         [=](const Tensors& t) {
           return at::multilabel_margin_loss(t[0], t[1], reduction);
         }});
  }
}

// Calls the component operators of the losses and of their gradients.
TEST(MarginLossTest, ShardsSameAsPlain) {
  for (const auto reduction : kReductions) {
    const auto grad =
        reduction == at::Reduction::None ? uniform({5}, 4) : uniform({}, 4);
    expect_same_as_plain(
        {c10::str("is_target ", reduction),
         {uniform({5, 3}, 1), labels({5, 3}, 3, 2)},
         {kScores, kSamples},
         [=](const Tensors& t) {
           return std::get<1>(
               at::multilabel_margin_loss_forward(t[0], t[1], reduction));
         }});
    expect_same_as_plain(
        {c10::str("multi_margin_backward ", reduction),
         {grad, uniform({5, 3}, 1), labels({5}, 3, 2)},
         {grad.dim() == 0 ? kEqual : kSamples, kScores, kSamples},
         [=](const Tensors& t) {
           return at::multi_margin_loss_backward(
               t[0], t[1], t[2], 1, 1, {}, reduction);
         }});
    expect_same_as_plain(
        {c10::str("multilabel_margin_backward ", reduction),
         {grad, uniform({5, 3}, 1), labels({5, 3}, 3, 2)},
         {grad.dim() == 0 ? kEqual : kSamples, kScores, kSamples},
         [=](const Tensors& t) {
           const auto is_target = std::get<1>(
               at::multilabel_margin_loss_forward(t[1], t[2], reduction));
           return at::multilabel_margin_loss_backward(
               t[0], t[1], t[2], reduction, is_target);
         }});
  }
}

TEST(MarginLossTest, StaysShardedWithoutCommunication) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x =
        in_layout(uniform({5, 3}, 1), mesh, {Shard(0)}).requires_grad_();
    const auto target = in_layout(labels({5}, 3, 2), mesh, {Shard(0)});
    Collectives collectives;
    const auto loss = at::multi_margin_loss(x, target);
    EXPECT_EQ(DTensor(loss).placements()[0], Partial(ReduceOp::kSum));
    const auto each =
        at::multi_margin_loss(x, target, 1, 1, {}, at::Reduction::None);
    EXPECT_EQ(DTensor(each).placements()[0], Shard(0));
    EXPECT_EQ(collectives.take(), "");
  });
}

// The local targets would fit: 2 samples and 2 targets on each rank.
TEST(MarginLossTest, RefusesTargetsThatDoNotFit) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto x = distribute_tensor(uniform({4, 3}, 1), mesh, {Shard(0)});
    const auto target = distribute_tensor(labels({3}, 3, 2), mesh, {Shard(0)});
    EXPECT_EQ(
        error_of([&] { at::multi_margin_loss(x, target); }),
        "[aten::multi_margin_loss] needs scores of (samples, classes) or "
        "(classes) with a target for each sample, got f64[4, 3] on (tp=2): "
        "S(0) and i64[3] on (tp=2): S(0). Reshape them.");
  });
}

// --- CTC --------------------------------------------------------------------

const std::vector<int64_t> kInputLengths = {6, 5, 4, 6, 6};
const std::vector<int64_t> kTargetLengths = {3, 1, 0, 2, 1};
constexpr int64_t kLongest = 3;

// log_probs of (time, samples, classes), with padded or concatenated targets.
Tensors ctc_operands(int64_t samples, bool padded) {
  const auto log_probs =
      at::log_softmax(variable({6, samples, 4}, 1), 2).detach();
  const auto count = static_cast<std::ptrdiff_t>(samples);
  const std::vector<int64_t> lengths(
      kTargetLengths.begin(), kTargetLengths.begin() + count);
  const std::vector<int64_t> times(
      kInputLengths.begin(), kInputLengths.begin() + count);
  const auto total = at::tensor(lengths).sum().item<int64_t>();
  const auto targets = padded ? labels({samples, kLongest}, 3, 2) + 1
                              : labels({total}, 3, 2) + 1;
  return {
      log_probs.requires_grad_(),
      targets,
      at::tensor(times),
      at::tensor(lengths)};
}

std::vector<int64_t> first_of(
    const std::vector<int64_t>& all,
    const at::Tensor& log_probs) {
  return {all.begin(), all.begin() + log_probs.size(1)};
}

const std::vector<Placements> kCtcLayouts = {
    {Replicate(), Shard(0), Shard(1), Shard(2), Partial(ReduceOp::kSum)},
    kSamples,
    kSamples,
    kSamples};

TEST(CtcLossTest, SameAsPlain) {
  for (const auto reduction : kReductions) {
    for (const int64_t samples : {5, 4, 1}) {
      for (const bool padded : {true, false}) {
        const auto name = c10::str(reduction, " ", samples, " ", padded);
        const auto operands = ctc_operands(samples, padded);
        expect_same_as_plain(
            {"lists " + name,
             {operands[0], operands[1]},
             {kCtcLayouts[0], kSamples},
             [=](const Tensors& t) {
               return at::ctc_loss(
                   t[0],
                   t[1],
                   first_of(kInputLengths, t[0]),
                   first_of(kTargetLengths, t[0]),
                   /*blank=*/0,
                   reduction);
             }});
        expect_same_as_plain(
            {"tensors " + name, operands, kCtcLayouts, [=](const Tensors& t) {
               return at::ctc_loss(t[0], t[1], t[2], t[3], 0, reduction);
             }});
      }
    }
  }
}

// The third sample has fewer time steps than its labels need.
TEST(CtcLossTest, InfiniteLosses) {
  const auto operands = ctc_operands(5, /*padded=*/true);
  const std::vector<int64_t> times = {6, 6, 1, 6, 6};
  const std::vector<int64_t> lengths = {1, 2, 3, 2, 1};
  for (const auto reduction : kReductions) {
    expect_same_as_plain(
        {c10::str("zero_infinity ", reduction),
         {operands[0], operands[1]},
         {kCtcLayouts[0], kSamples},
         [=](const Tensors& t) {
           return at::ctc_loss(t[0], t[1], times, lengths, 0, reduction, true);
         }});
  }
}

TEST(CtcLossTest, OneSequence) {
  const auto log_probs = at::log_softmax(variable({6, 4}, 1), 1).detach();
  expect_same_as_plain(
      {"without samples",
       {log_probs.requires_grad_(), labels({2}, 3, 2) + 1},
       {{Replicate(), Shard(0), Shard(1)}, kSamples},
       [](const Tensors& t) {
         return at::ctc_loss(
             t[0], t[1], at::IntArrayRef({6}), at::IntArrayRef({2}));
       }});
}

TEST(CtcLossTest, UnreducedOperators) {
  for (const bool padded : {true, false}) {
    const auto operands = ctc_operands(5, padded);
    expect_same_as_plain(
        {c10::str("_ctc_loss of lists ", padded),
         {operands[0], operands[1]},
         {kCtcLayouts[0], kSamples},
         [](const Tensors& t) {
           return std::get<0>(
               at::_ctc_loss(t[0], t[1], kInputLengths, kTargetLengths));
         }});
    expect_same_as_plain(
        {c10::str("_ctc_loss of tensors ", padded),
         operands,
         kCtcLayouts,
         [](const Tensors& t) {
           return std::get<0>(at::_ctc_loss(t[0], t[1], t[2], t[3]));
         }});
  }
}

TEST(CtcLossTest, LogAlphaIsAsWideAsTheLongestTarget) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto operands = ctc_operands(5, /*padded=*/false);
    const auto x = in_layout(operands[0].detach(), mesh, {Shard(1)});
    const auto targets = in_layout(operands[1], mesh, {Replicate()});
    const auto alpha =
        std::get<1>(at::_ctc_loss(x, targets, kInputLengths, kTargetLengths));
    EXPECT_EQ(alpha.sizes(), at::IntArrayRef({5, 6, 2 * kLongest + 1}));
    EXPECT_EQ(full(alpha).sizes(), alpha.sizes());
  });
}

TEST(CtcLossTest, StaysShardedWithoutCommunication) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto operands = ctc_operands(5, /*padded=*/false);
    auto x = in_layout(operands[0].detach(), mesh, {Shard(1)});
    x.requires_grad_();
    const auto targets = in_layout(operands[1], mesh, {Replicate()});
    Collectives collectives;
    const auto loss = at::ctc_loss(x, targets, kInputLengths, kTargetLengths);
    EXPECT_EQ(DTensor(loss).placements()[0], Partial(ReduceOp::kSum));
    loss.backward();
    EXPECT_EQ(DTensor(x.grad()).placements()[0], Shard(1));
    EXPECT_EQ(collectives.take(), "");
  });
}

TEST(CtcLossTest, RefusesLengthsThatDoNotFit) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto operands = ctc_operands(5, /*padded=*/false);
    const auto x = in_layout(operands[0].detach(), mesh, {Shard(1)});
    const auto targets = in_layout(operands[1], mesh, {Replicate()});
    EXPECT_EQ(
        error_of([&] {
          at::ctc_loss(
              x, targets, at::IntArrayRef({6, 6}), at::IntArrayRef({1, 1}));
        }),
        "[aten::ctc_loss.IntList] needs log_probs of (time, samples, classes) "
        "with targets and two lengths for each sample, got f64[6, 5, 4] on "
        "(tp=2): S(1) and i64[7] on (tp=2): R with 2 input lengths and 2 "
        "target lengths. Pass a length for each sample.");
    EXPECT_EQ(
        error_of(
            [&] { at::ctc_loss(x, targets, kInputLengths, kInputLengths); }),
        "[aten::ctc_loss.IntList] target_lengths add up to 27, but there are "
        "7 labels. Pass the labels of all samples, one after the other.");
  });
}

// --- adaptive softmax -------------------------------------------------------

torch::nn::AdaptiveLogSoftmaxWithLoss adaptive() {
  torch::manual_seed(7);
  torch::nn::AdaptiveLogSoftmaxWithLoss module(
      torch::nn::AdaptiveLogSoftmaxWithLossOptions(6, 10, {3, 6}).div_value(2));
  module->to(at::kDouble);
  return module;
}

// Returns outputs, and the gradients of the input and of the weights.
Tensors run_adaptive(
    torch::nn::AdaptiveLogSoftmaxWithLoss module,
    const at::Tensor& given,
    const at::Tensor& target) {
  auto input = given.detach().requires_grad_();
  const auto output = module->forward(input, target).output;
  (output * output).sum().backward();
  Tensors all = {
      output, module->log_prob(input), module->predict(input), input.grad()};
  for (const auto& weight : module->parameters()) {
    all.push_back(weight.grad());
  }
  return all;
}

TEST(AdaptiveLogSoftmaxTest, SameAsPlain) {
  const auto input = uniform({5, 6}, 1);
  const auto target = labels({5}, 10, 2);
  for (const int64_t ranks : {1, 2, 3}) {
    run_ranks(ranks, [&] {
      const auto mesh = init_device_mesh(at::kCPU, {ranks});
      const auto expected = run_adaptive(adaptive(), input, target);
      for (const auto& x : kScores) {
        for (const auto& y : kSamples) {
          auto module = adaptive();
          distribute_module(*module, mesh);
          const auto got = run_adaptive(
              module,
              in_layout(input, mesh, {x}),
              in_layout(target, mesh, {y}));
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_TRUE(close(full(got[i]), expected[i])) << x << y << i;
          }
        }
      }
    });
  }
}

} // namespace TEST_SOURCE
} // namespace dtensor
