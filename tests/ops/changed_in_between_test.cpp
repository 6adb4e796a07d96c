// SPDX-License-Identifier: BSD-3-Clause
// Tests that write to a tensor that the backward pass needs, between forward
// and backward pass. LibTorch then refuses to run backward. DTensors must do
// the same, unless the graph holds a copy and the gradient is that of the
// unmodified tensor.
#include <gtest/gtest.h>
#include <tests/ops/operands.h>

#include <functional>

namespace dtensor::testing {
namespace TEST_SOURCE {

using T = at::Tensor;
using Use = std::function<T(const T& x, const T& w)>;

struct Named {
  const char* name;
  Use use; // x is (4, 6), w is (6, 6)
};

const std::vector<Named>& uses() {
  static const std::vector<Named> all = {
      {"mul", [](auto& x, auto&) { return x * x; }},
      {"linear", [](auto& x, auto& w) { return at::linear(x, w); }},
      {"linear 3d",
       [](auto& x, auto& w) { return at::linear(x.unsqueeze(0), w); }},
      {"matmul", [](auto& x, auto& w) { return x.matmul(w); }},
      {"matmul 3d", [](auto& x, auto& w) { return x.unsqueeze(0).matmul(w); }},
      {"addmm", [](auto& x, auto& w) { return at::addmm(x, x, w); }},
      {"layer_norm", [](auto& x, auto&) { return at::layer_norm(x, {6}); }},
      {"rms_norm", [](auto& x, auto&) { return at::rms_norm(x, {6}); }},
      {"softmax", [](auto& x, auto&) { return x.softmax(1) * x; }},
      {"gelu", [](auto& x, auto&) { return at::gelu(x); }},
      {"attention",
       [](auto& x, auto&) {
         const auto q = x.view({1, 4, 2, 3});
         return at::scaled_dot_product_attention(q, q, q);
       }},
      {"gather",
       [](auto& x, auto&) { return x.gather(1, (x * 0).to(at::kLong)) * x; }},
      {"exp", [](auto& x, auto&) { return x.exp() * x; }},
      {"max", [](auto& x, auto&) { return std::get<0>(x.max(1, true)) * x; }},
      {"prod", [](auto& x, auto&) { return x.prod(); }},
      {"norm", [](auto& x, auto&) { return x.norm(2); }},
  };
  return all;
}

enum class Write { kInput, kOutput };

// Returns "refused", or the gradient of x as text.
std::string gradient(
    const Use& use,
    const T& leaf,
    const T& weight,
    std::optional<Write> write) {
  const auto x = leaf.detach().requires_grad_();
  const auto w = weight.detach().requires_grad_();
  auto between = x * 1;
  auto y = use(between, w);
  auto seed = y.detach() * 0 + 2;
  try {
    if (write == Write::kInput) {
      between.add_(1);
    } else if (write == Write::kOutput) {
      const at::NoGradGuard no_grad;
      y.mul_(2);
    }
    y.backward(seed);
  } catch (const c10::Error& e) {
    const std::string text = e.what_without_backtrace();
    const bool clear = text.find("modified by an inplace") != text.npos ||
        text.find("would change the layout of self") != text.npos;
    return clear ? "refused" : text;
  }
  return c10::str(full(x.grad()));
}

void expect_no_silent_change(Write write) {
  Failures failures;
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = uniform({4, 6}, 1);
    const auto w = uniform({6, 6}, 2);
    for (const auto& p :
         {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate())}) {
      for (const auto& [name, use] : uses()) {
        const auto title = c10::str(name, " of ", to_string(p));
        const auto dx = place(x, mesh, p);
        const auto dw = place(w, mesh, Replicate());
        const auto truth = gradient(use, x, w, write);
        const auto before = gradient(use, dx, dw, std::nullopt);
        const auto mine = gradient(use, dx, dw, write);
        if (mine != "refused" && mine != before) {
          failures.add(title + ": " + mine + " but was " + before);
        }
        if (truth != "refused" && mine == "refused") {
          failures.add(title + " is refused without need");
        }
      }
    }
  });
  EXPECT_EQ(failures.text(), "");
}

TEST(ChangedInBetween, AnInputThatTheGraphSaved) {
  expect_no_silent_change(Write::kInput);
}

TEST(ChangedInBetween, AnOutputThatTheGraphSaved) {
  expect_no_silent_change(Write::kOutput);
}

// Calls without redistribution are refused.
TEST(ChangedInBetween, WhatIsLocalIsRefused) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(uniform({4, 6}, 1), mesh, Shard(0));
    const auto w = place(uniform({6, 6}, 2), mesh, Replicate());
    for (const auto& [name, use] : uses()) {
      if (gradient(
              use, uniform({4, 6}, 1), uniform({6, 6}, 2), Write::kInput) ==
          "refused") {
        const auto mine = gradient(use, x, w, Write::kInput);
        const bool copied = std::string(name) == "prod"; // replicated first
        EXPECT_TRUE(copied || mine == "refused") << name << ": " << mine;
      }
    }
  });
}

// A program may fill one target tensor for each batch.
TEST(ChangedInBetween, TargetsAndWeightsOfCrossEntropyAreRefused) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const bool is_target : {true, false}) {
      for (const auto& of_logits :
           {Placement(Replicate()), Placement(Shard(1))}) {
        const auto x =
            place(uniform({4, 6}, 1), mesh, of_logits).requires_grad_();
        const auto target = place(at::arange(4), mesh, Replicate());
        const auto weight = place(uniform({6}, 2), mesh, Replicate());
        const auto loss = at::cross_entropy_loss(x, target, weight);
        (is_target ? target : weight).zero_();
        EXPECT_THAT(
            against_plain::error_of([&] { loss.backward(); }),
            ::testing::HasSubstr("modified by an inplace operation"));
      }
    }
  });
}

// A local tensor and its DTensor share memory. Graphs that saved one of them
// detect writes to the other.
TEST(ChangedInBetween, LocalTensorsAndTheirDTensors) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto w = at::ones({2, 6}, at::kDouble).requires_grad_();
    const auto refused = [](const T& y) {
      try {
        full(y.sum()).backward();
        return false;
      } catch (const c10::Error&) {
        return true;
      }
    };
    {
      auto local = at::ones({2, 6}, at::kDouble);
      const auto y = local * w;
      T d = DTensor::from_local(local, mesh, {Shard(0)});
      d.add_(1);
      EXPECT_TRUE(refused(y)) << "written to what from_local returned";
    }
    {
      auto d = place(uniform({4, 6}, 1), mesh, Shard(0));
      const auto y = DTensor(d).to_local() * w;
      d.add_(1);
      EXPECT_TRUE(refused(y)) << "written to the DTensor of a local tensor";
    }
    {
      auto d = place(uniform({4, 6}, 1), mesh, Shard(0));
      const auto dw =
          place(uniform({4, 6}, 2), mesh, Shard(0)).detach().requires_grad_();
      const auto y = d * dw;
      DTensor(d).to_local().add_(1);
      EXPECT_TRUE(refused(y)) << "written to what to_local returned";
    }
    {
      auto d = place(uniform({4, 6}, 1), mesh, Shard(0));
      const auto dw =
          place(uniform({4, 6}, 2), mesh, Shard(0)).detach().requires_grad_();
      const auto y = d * dw;
      EXPECT_FALSE(refused(y)) << "nothing was written";
    }
  });
}

TEST(ChangedInBetween, RanksWithoutElementsRefuseToo) {
  run_ranks(2, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    const auto x = place(at::ones({1}), mesh, Shard(0)).requires_grad_();
    const auto index = place(at::zeros({4}, at::kLong), mesh, Replicate());
    const auto between = x * 1;
    const auto y = between.gather(0, index);
    EXPECT_EQ(DTensor(y).placements()[0], Partial());
    between.mul_(2);
    EXPECT_THROW(y.sum().backward(), c10::Error);
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor::testing
