// SPDX-License-Identifier: BSD-3-Clause
// Tests of gradients that LibTorch's formulas create from sizes alone.
#include "tests/ops/against_plain.h"
#include "tests/torch_version.h"

namespace dtensor {
namespace TEST_SOURCE {

using namespace dtensor::against_plain;

TEST(PlainGradient, OfATensorThatIsSkipped) {
  const auto cat = [](const TensorList& in) {
    return TensorList{at::cat({in[0], in[1]}, 0)};
  };
  check_cases(
      {{"cat", {numbers({0}, 1), numbers({5, 4}, 2)}, cat},
       {"cat of empty ones", {numbers({0}, 1), numbers({0}, 2)}, cat},
       {"used twice",
        {numbers({0}, 1), numbers({5, 4}, 2)},
        [](const TensorList& in) {
          return TensorList{
              at::cat({in[1], in[0]}, 1) * 2, in[0] * 3, at::cat({in[0] * 2})};
        }}});
}

TEST(PlainGradient, OfStepFunctions) {
  check_cases({
      {"copysign",
       {numbers({4, 3}, 1), numbers({3}, 2)},
       [](const TensorList& in) {
         return TensorList{at::copysign(in[0], in[1]), in[1] * 2};
       }},
      unary("sgn", numbers({4, 3}, 1), [](auto& t) { return at::sgn(t * 2); }),
  });
}

TEST(PlainGradient, OfNextafter) {
  if (!testing::kNextafterHasGradient) {
    GTEST_SKIP() << "not before LibTorch 2.13";
  }
  check_cases(
      {{"nextafter",
        {numbers({4, 3}, 1), numbers({4, 3}, 2)},
        [](const TensorList& in) {
          return TensorList{at::nextafter(in[0], in[1])};
        }}});
}

TEST(PlainGradient, OfNoRepetition) {
  check_cases({
      unary(
          "repeat",
          numbers({4, 3}, 1),
          [](auto& t) {
            return t.repeat({2, 0, 1});
          }),
      unary("tile", numbers({4}, 1), [](auto& t) { return at::tile(t, {0}); }),
  });
}

// Checks the in-place form: self keeps its layout.
void check_in_place(const OpCase& c, const DeviceMesh& mesh, Failures& all) {
  for (const Placement& self : {Placement(Replicate()), Placement(Shard(0))}) {
    for (const Placement& other :
         {Placement(Replicate()), Placement(Shard(1))}) {
      std::vector<Placements> chosen = {{self}, {other}};
      chosen.resize(c.inputs.size());
      check_layouts(c, mesh, chosen, 0, all);
    }
  }
}

using InPlace = std::function<void(const at::Tensor&, const at::Tensor&)>;

std::vector<std::pair<std::string, InPlace>> step_functions_in_place() {
  std::vector<std::pair<std::string, InPlace>> all = {
      {"copysign_", [](at::Tensor x, auto& y) { x.copysign_(y); }},
      {"sgn_", [](at::Tensor x, auto&) { x.sgn_(); }},
      {"eq_", [](at::Tensor x, auto& y) { x.eq_(y); }},
      {"ge_", [](at::Tensor x, auto&) { x.ge_(1); }},
      {"gt_", [](at::Tensor x, auto& y) { x.gt_(y); }},
      {"le_", [](at::Tensor x, auto&) { x.le_(1); }},
      {"lt_", [](at::Tensor x, auto&) { x.lt_(1); }},
      {"ne_", [](at::Tensor x, auto& y) { x.ne_(y); }},
  };
  if (testing::kNextafterHasGradient) {
    all.emplace_back(
        "nextafter_", [](at::Tensor x, auto& y) { x.nextafter_(y); });
  }
  return all;
}

TEST(PlainGradient, OfStepFunctionsInPlace) {
  Failures failures;
  run_ranks(2, [&] {
    const auto mesh = init_device_mesh(at::kCPU, {2});
    for (const auto& entry : step_functions_in_place()) {
      const auto& name = entry.first;
      const auto& fn = entry.second;
      const TensorList inputs = {numbers({4, 3}, 1), numbers({4, 3}, 2)};
      const auto whole = [&](const TensorList& in) {
        const auto y = in[0] * 2;
        fn(y, in[1]);
        return TensorList{y * in[0] + in[1]};
      };
      const auto view = [&](const TensorList& in) {
        const auto y = in[0] * 2;
        fn(y.narrow(1, 0, 2), in[1].narrow(1, 1, 2));
        return TensorList{y * in[0] + in[1]};
      };
      check_in_place({name, inputs, whole}, mesh, failures);
      check_in_place({name + " of a view", inputs, view}, mesh, failures);
    }
  });
  EXPECT_EQ(failures.text(), "");
}

TEST(PlainGradient, HasTheLayoutOfTheOperand) {
  run_ranks(3, [] {
    const auto mesh = init_device_mesh(at::kCPU, {2}, {"tp"});
    const auto x = distribute_tensor(numbers({4, 3}, 1), mesh, {Shard(0)});
    const auto plain = at::scalar_tensor(2.0, at::kDouble).requires_grad_();
    const auto y = x.detach().requires_grad_();
    const auto z = at::copysign(x * 2, y) + at::copysign(x, plain);
    const auto grads =
        torch::autograd::grad({z.sum()}, {y, plain}, {}, false, false);
    EXPECT_EQ(
        to_string(*DTensor(grads[0]).spec()), "f64[4, 3] on (tp=2): S(0)");
    EXPECT_FALSE(is_dtensor(grads[1])) << "of a plain operand";
  });
}

} // namespace TEST_SOURCE
} // namespace dtensor
